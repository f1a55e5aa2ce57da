"""The bill of materials of the container image: Debian's packages and Python's, as CycloneDX 1.6.

python image_sbom.py SITE_PACKAGES DPKG_STATUS OUTPUT
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import PackageMetadata, distributions
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.contrib.this.builders import this_component
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL


def debian_components(status: str) -> Iterator[Component]:
    """The installed packages of dpkg's ``status`` file."""
    for paragraph in status.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Status") != "install ok installed":
            continue
        name, version = fields["Package"], fields["Version"]
        purl = PackageURL("deb", "debian", name, version, {"arch": fields["Architecture"]})
        yield Component(name=name, version=version, type=ComponentType.LIBRARY, purl=purl, bom_ref=str(purl))


def python_components(site_packages: Path) -> Iterator[Component]:
    """The distributions in a folder of packages, with the licences that they name."""
    licences = LicenseFactory()
    for distribution in distributions(path=[str(site_packages)]):
        metadata = distribution.metadata
        name, version = metadata["Name"], distribution.version
        purl = PackageURL("pypi", None, name.lower().replace("_", "-"), version)
        named = _licence(metadata)
        yield Component(
            name=name,
            version=version,
            type=ComponentType.LIBRARY,
            purl=purl,
            bom_ref=str(purl),
            licenses=[licences.make_from_string(named)] if named else (),
        )


def _licence(metadata: PackageMetadata) -> str:
    """The expression that a distribution names, or the name; the text of a licence is neither."""
    names = (metadata[name] for name in ("License-Expression", "License") if name in metadata)
    named = next(filter(None, names), "")
    return "" if "\n" in named else named.strip()


def bill(site_packages: Path, status: str) -> Bom:
    """All that an image consists of. ``tirgemm`` itself is what the bill is of."""
    components = [*debian_components(status), *python_components(site_packages)]
    (ours,) = (component for component in components if component.name == "tirgemm")
    others = [component for component in components if component is not ours]
    bom = Bom(components=others)
    bom.metadata.component = ours
    bom.metadata.tools.components.add(this_component())
    bom.register_dependency(ours, others)
    return bom


def main() -> None:
    site_packages, status, output = map(Path, sys.argv[1:])
    bom = bill(site_packages, status.read_text(encoding="utf-8"))
    output.write_text(JsonV1Dot6(bom).output_as_string(indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
