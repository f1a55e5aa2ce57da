"""The opcodes of the machine code that this analysis knows, by the unit that runs them.

Source: NVIDIA's "CUDA Binary Utilities", instruction set references of Ampere, Ada and Hopper. Modifiers (``.128``) are
no part of a name here.
"""

from __future__ import annotations

from typing import Final

UNKNOWN: Final = "unknown"
TEXTURE: Final = "texture"

_BY_UNIT: Final[dict[str, str]] = {
    "fp32": "FADD FADD32I FCHK FFMA FFMA32I FMNMX FMUL FMUL32I FSEL FSET FSETP FSWZADD FSWZ MUFU RRO",
    "fp16": "HADD2 HADD2_32I HFMA2 HFMA2_32I HMNMX2 HMUL2 HMUL2_32I HSET2 HSETP2",
    "fp64": "DADD DFMA DMUL DSETP DMNMX DSET",
    "tensor": "HMMA IMMA BMMA DMMA HGMMA IGMMA BGMMA QGMMA",
    "integer": (
        "BMSK BREV FLO IABS IADD IADD3 IADD32I IDP IDP4A IMAD IMNMX IMUL IMUL32I ISCADD ISCADD32I ISETP LEA LOP LOP3 "
        "LOP32I POPC SHF SHL SHR VABSDIFF VABSDIFF4 VADD VHMNMX VIADD VIADDMNMX VIMNMX VIMNMX3"
    ),
    "conversion": "F2F F2FP F2I F2IP FRND I2F I2FP I2I I2IP",
    "move": "MATCH MOV MOV32I MOVM PRMT SEL SGXT SHFL S2R CS2R S2UR R2B B2R LEPC PLOP3 PSETP P2R R2P",
    "uniform": (
        "R2UR REDUX UBMSK UBREV UCLEA UF2FP UFLO UIADD3 UIMAD UISETP ULEA ULEPC ULOP ULOP3 ULOP32I UMOV UP2UR UPLOP3 "
        "UPOPC UPRMT UPSETP UR2UP USEL USETP USGXT USHF USHL USHR VOTEU"
    ),
    "shared": "LDS STS LDSM STSM ATOMS ATOMS32 SYNCS STAS REDAS",
    "global": "LDG STG ATOMG RED REDG CCTL CCTLL CCTLT LDGMC",
    "copy": "LDGSTS LDGDEPBAR UTMALDG UTMASTG UTMAREDG UTMAPF UTMACCTL UTMACMDFLUSH UBLKCP UBLKPF UBLKRED",
    "generic": "LD ST ATOM QSPC",
    "local": "LDL STL",
    "constant": "LDC ULDC LDCU",
    "barrier": (
        "ARRIVES BAR CGAERRBAR DEPBAR ERRBAR ELECT ENDCOLLECTIVE FENCE MEMBAR NANOSLEEP UCGABAR_ARV UCGABAR_WAIT WARPGROUP "
        "WARPGROUPSET WARPSYNC YIELD VOTE USETMAXREG PREEXIT ACQBULK CREDUX"
    ),
    "control": (
        "BMOV BPT BRA BREAK BRX BRXU BSSY BSYNC CALL EXIT JMP JMX JMXU KILL NOP RET RPCMOV RTT PMTRIG SETCTAID SETLMEMBASE "
        "GETLMEMBASE"
    ),
    TEXTURE: "SUATOM SULD SURED SUST TEX TLD TLD4 TMML TXD TXQ FOOTPRINT IPA AL2P ALD AST ISBERD ISBEWR OUT PIXLD",
}

UNIT_OF: Final[dict[str, str]] = {name: unit for unit, names in _BY_UNIT.items() for name in names.split()}


def unit_of(opcode: str) -> str:
    """The unit that runs ``opcode`` (without modifiers): ``fp32``, ``tensor``, ``shared`` ..., or ``unknown``."""
    return UNIT_OF.get(opcode, UNKNOWN)
