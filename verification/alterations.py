"""Mutations of generated CUDA source: one barrier, wait or fence removed; random delays; bounded waits.

TVM writes one statement a line, and every PTX instruction as a call of a helper function whose body is the assembly. A
line of a kernel that calls a helper of which the assembly synchronises is a ``SynchronisationSite``. Text in, text out;
nothing runs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tirgemm.errors import InvalidRequest

_HELPER = re.compile(r"^__forceinline__ __device__ [\w ]*?\b(\w+)\(.*?^\}", re.MULTILINE | re.DOTALL)
_KERNEL = re.compile(r'^extern "C" __global__ [^;{]*\{.*$', re.MULTILINE)
_NAME = re.compile(r"(\w+)\([^()]*\) \{")
_CALL = re.compile(r"^\s*(\w+)\(.*\);$")
_SYNCHRONISES = re.compile(
    r"mbarrier\.(?:arrive|try_wait|test_wait)|cp\.async\.mbarrier|fence\.|membar|\bbar(?:rier)?\.(?:sync|arrive|cluster)"
    r"|wgmma\.(?:fence|commit_group|wait_group)|cp\.async\.(?:bulk\.)?(?:wait|commit)|ld\.acquire|st\.release|\bred\."
    r"|griddepcontrol|__syncthreads|__threadfence"
)
# Assembly -> the same, but waiting for less.
_WEAKER: tuple[tuple[str, str], ...] = (
    (r"(wgmma\.wait_group\.sync\.aligned) 0", r"\1 1"),
    (r"(wgmma\.wait_group\.sync\.aligned) 1", r"\1 4"),
    (r"(cp\.async(?:\.bulk)?\.wait_group(?:\.read)?) 0", r"\1 1"),
    (r"(cp\.async(?:\.bulk)?\.wait_group(?:\.read)?) 1", r"\1 3"),
    (r"(cp\.async\.wait_group) 2", r"\1 3"),
    (r"(cp\.async\.wait_group) 3", r"\1 4"),
    (r"barrier\.cluster\.arrive\.release", "barrier.cluster.arrive.relaxed"),
)
_CLUSTER_ARRIVE, _CLUSTER_WAIT = "barrier.cluster.arrive", "barrier.cluster.wait"
# What begins a part of a kernel. After a tile's last wgmma comes its epilogue; the next tile is not written twice.
_PARTS = (
    ("setmaxnreg.dec", "producer"),
    ("setmaxnreg.inc", "consumer"),
    ("wgmma.wait_group.sync.aligned 0", "epilogue"),
)
# Parts of any other kernel: before, in and behind its loop over k. A line in a loop is indented more than once.
_START, _STEPS, _END = "start", "steps", "end"
_INSIDE = "    "
_INSTRUCTION = re.compile(
    r'"(?:\{[^"]*?)?((?:mbarrier|cp\.async|fence|bar|wgmma|ld\.|st\.|red\.|membar|griddep)[^"%\[;]*)'
)
# Between the first wgmma of a stage and the wait for it ptxas serialises what it does not understand: no delay there.
_NO_DELAY = re.compile(r"wgmma\.|setmaxnreg")
# The same line again and again, chunk after chunk of an epilogue, says no more than its first few.
_MOST_ALIKE = 6

DELAY, LATE, LIMIT, DROP, WEAKEN = "delay", "late", "limit", "drop", "weaken"
OUTSIDE, RACE = "outside", "race"
# Planted behind the declaration of shared memory: a write behind its end, and writes of all warps to the same words.
# Each warp writes another value, in blocks of several axes too: racecheck does not report writes of one value.
_THREAD = "(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z))"
_PLANTED = {
    OUTSIDE: "if (blockIdx.x == 0 && threadIdx.x == 0) ((volatile int*)NAME)[60000] = 1;",
    RACE: f"((volatile int*)NAME)[{_THREAD} % 32] = (int){_THREAD};",
}
_SHARED = re.compile(r"extern __shared__ .*?(\w+)\[\];")

# A wait that ends: what never comes is a trap, which the host sees as a failed launch. In assembly, as little as TVM's
# own wait: with more registers in it ptxas serialises the wgmmas around it.
_BOUNDED_WAIT = """
__forceinline__ __device__ void NAME(void* barrier, int phase) {
  unsigned int address = __cvta_generic_to_shared(barrier);
  asm volatile(
      "{\\n"
      ".reg .pred p;\\n"
      ".reg .u32 left;\\n"
      "mov.u32 left, 200000;\\n"
      "LAB_WAIT:\\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%0], %1, 10000;\\n"
      "@p bra.uni DONE;\\n"
      "sub.u32 left, left, 1;\\n"
      "setp.ne.u32 p, left, 0;\\n"
      "@p bra.uni LAB_WAIT;\\n"
      "trap;\\n"
      "DONE:\\n"
      "}\\n"
      :: "r"(address), "r"(phase) : "memory");
}
"""
# One of four calls waits up to 2 us, one of 64 up to 16 us: by place, block, warp and the time of the launch.
_DELAYS = """
__forceinline__ __device__ void tirgemm_delay(unsigned site, unsigned longest) {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  unsigned mask = __activemask();
  unsigned hash = __shfl_sync(mask, (unsigned)(now >> 5), __ffs(mask) - 1);
  hash ^= (site + 1u) * 0x9E3779B9u ^ (blockIdx.x + 1u) * 0x85EBCA6Bu ^ (threadIdx.x / 32u + 1u) * 0xC2B2AE35u;
  hash ^= hash >> 16; hash *= 0x7FEB352Du; hash ^= hash >> 15; hash *= 0x846CA68Bu; hash ^= hash >> 16;
  unsigned length = longest ? hash % longest : (hash & 63u) == 0u ? (hash >> 8) % 32768u
                  : (hash & 3u) == 0u ? (hash >> 8) % 4096u : 0u;
  long long start = clock64();
  while (clock64() - start < (long long)length) {}
}
"""
# Cycles that a block may start late: some tens of microseconds.
_LATE = 65536


@dataclass(frozen=True)
class SynchronisationSite:
    """One line of a kernel that synchronises: its number in the source, its text, the assembly behind it, and where.

    ``where`` is the kernel and the part of it, as far as its text tells: of a kernel with warps of different work
    start, producer, consumer or epilogue, of another start, steps (in a loop) or end.
    """

    line: int
    text: str
    assembly: str
    where: str

    @property
    def what(self) -> str:
        """The instruction, for a person: ``wgmma.wait_group.sync.aligned 1``."""
        match = _INSTRUCTION.search(self.assembly)
        return re.sub(r"[ _,]*(\bP\d)?[ _,]*$", "", match[1]) if match else self.text.partition("(")[0]


@dataclass(frozen=True)
class Mutant:
    """What is taken away: ``alteration`` is its name in a config, ``what`` and ``where`` are for a person."""

    alteration: str
    what: str
    where: str


def sites(source: str) -> list[SynchronisationSite]:
    """Every line of the kernels that synchronises, in order."""
    assembly = _helpers(source)
    lines = source.splitlines()
    synchronisations = []
    kernel = where = ""
    for number in _kernel_lines(source):
        if lines[number - 1].startswith('extern "C" __global__'):
            where = _START
            found_name = _NAME.search(lines[number - 1])
            kernel = found_name[1] if found_name else ""
        call = _CALL.match(lines[number])
        body = assembly.get(call[1], call[1]) if call else ""
        where = next((part for pattern, part in _PARTS if pattern in body), where)
        if _SYNCHRONISES.search(body):
            if where in (_START, _STEPS, _END):
                inside = lines[number].startswith(_INSIDE)
                where = _STEPS if inside else _START if where == _START else _END
            synchronisations.append(SynchronisationSite(number, lines[number].strip(), body, f"{kernel}: {where}"))
    return synchronisations


def mutants(source: str) -> list[Mutant]:
    """Every site taken away, and made to wait for less where that can be said; the cluster's barriers by pairs.

    A block that leaves out its cluster's barrier alone stops: so two neighbouring pairs are also left out together,
    which are one barrier where producers and consumers meet in different places.
    """
    altered_sources: list[Mutant] = []
    alike: dict[str, int] = {}
    pairs: list[SynchronisationSite] = []
    for site in sites(source):
        alike[site.text] = alike.get(site.text, 0) + 1
        if _CLUSTER_ARRIVE in site.assembly:
            pairs.append(site)
        if _CLUSTER_WAIT in site.assembly or alike[site.text] > _MOST_ALIKE:
            continue
        if _CLUSTER_ARRIVE in site.assembly:
            altered_sources.append(Mutant(f"{DROP}:{site.line},{site.line + 1}", "barrier.cluster removed", site.where))
        else:
            altered_sources.append(Mutant(f"{DROP}:{site.line}", f"{site.what} removed", site.where))
        if _weaker(site.assembly) is not None:
            altered_sources.append(Mutant(f"{WEAKEN}:{site.line}", f"{site.what} weakened", site.where))
    for first, second in itertools.pairwise(pairs):
        lines = ",".join(str(line) for site in (first, second) for line in (site.line, site.line + 1))
        altered_sources.append(Mutant(f"{DROP}:{lines}", "two barriers of the cluster removed", first.where))
    return altered_sources


def altered(source: str, alteration: str) -> str:
    """``source`` with alterations, joined by ``+``: ``delay``, ``late``, ``limit``, ``drop:LINES``, ``weaken:LINE``.

    ``delay`` makes warps wait a random time before they synchronise, and blocks start late; ``late`` only the latter;
    ``limit`` turns a wait without end into a failed launch; ``outside`` and ``race`` plant what a sanitizer must find.
    Raises InvalidRequest for any other word, and where ``drop`` and ``weaken`` do not name a site.
    """
    words = alteration.split("+")
    known = sites(source)
    lines = source.splitlines()
    extra = ""
    # What keeps line numbers goes first.
    for word in words:
        name, _, value = word.partition(":")
        if name in (DROP, WEAKEN):
            for number in _numbers(value, known, alteration):
                if name == DROP:
                    lines[number] = ""
                else:
                    extra += _weaken(lines, number, known, alteration)
        elif name in _PLANTED:
            place, declared = next((n, match) for n, line in enumerate(lines) if (match := _SHARED.search(line)))
            lines[place] += " " + _PLANTED[name].replace("NAME", declared[1])
        elif word not in (DELAY, LATE, LIMIT):
            known_words = f"{DELAY}, {LATE}, {LIMIT}, {DROP}:LINES, {WEAKEN}:LINE, {OUTSIDE}, {RACE}"
            raise InvalidRequest(f"alteration {alteration!r}: {word!r} is none of {known_words}")
    text = "\n".join(lines) + "\n"
    if extra:
        text = _before_kernels(text, extra)
    if LIMIT in words:
        text = _limited(text)
    if DELAY in words or LATE in words:
        text = _delayed(text, everywhere=DELAY in words)
    return text


def _helpers(source: str) -> dict[str, str]:
    return {match[1]: match[0] for match in _HELPER.finditer(source)}


def _kernel_lines(source: str) -> Iterator[int]:
    """Numbers of the lines inside kernels."""
    lines = source.splitlines()
    for match in _KERNEL.finditer(source):
        number = source.count("\n", 0, match.end()) + 1
        while lines[number] != "}":
            yield number
            number += 1


def _numbers(value: str, known: list[SynchronisationSite], alteration: str) -> list[int]:
    places = {site.line for site in known}
    numbers = [int(number) for number in value.split(",") if number.isdigit()]
    if not numbers or not set(numbers) <= places or len(numbers) != value.count(",") + 1:
        raise InvalidRequest(f"alteration {alteration!r}: {value!r} does not name lines that synchronise")
    return numbers


def _weaker(assembly: str) -> str | None:
    for pattern, replacement in _WEAKER:
        weaker, count = re.subn(pattern, replacement, assembly)
        if count:
            return weaker
    return None


def _weaken(lines: list[str], number: int, known: list[SynchronisationSite], alteration: str) -> str:
    """Let the line call a weaker copy of its helper; the copy's text."""
    site = next(site for site in known if site.line == number)
    name = site.text.partition("(")[0]
    weaker = _weaker(site.assembly)
    if weaker is None:
        raise InvalidRequest(f"alteration {alteration!r}: line {number} has no weaker form: {site.text}")
    lines[number] = lines[number].replace(name + "(", name + "_weaker(", 1)
    return weaker.replace(name + "(", name + "_weaker(", 1) + "\n"


def _before_kernels(source: str, text: str) -> str:
    place = source.index('extern "C" __global__')
    return source[:place] + text + source[place:]


def _limited(source: str) -> str:
    """Waits on barriers that end in a trap."""
    for name, body in _helpers(source).items():
        if "mbarrier.try_wait" in body:
            source = source.replace(body, _BOUNDED_WAIT.strip().replace("NAME", name))
    return source


def _delayed(source: str, *, everywhere: bool) -> str:
    """Random delays at the start of every kernel and, ``everywhere``, before what synchronises."""
    lines = source.splitlines()
    if everywhere:
        for site in sites(source):
            if not _NO_DELAY.search(site.assembly):
                lines[site.line] = f"tirgemm_delay({site.line}u, 0u); {site.text}"
    for number, line in enumerate(lines):
        if line.startswith('extern "C" __global__') and "{" in line:
            lines[number] = f"{line} tirgemm_delay({number}u, {_LATE}u);"
    return _before_kernels("\n".join(lines) + "\n", _DELAYS.lstrip())
