"""Samples of counters: metrics by name, and a table as the profiler prints it."""

from __future__ import annotations

LOADS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"

# ncu 2025: messages, the head, a line of units, a line a launch; thousands are separated, absent metrics are n/a.
LOG = f"""==PROF== Connected to process 4242 (/usr/bin/python3.12)
==PROF== Profiling "simt_gemm_kernel" - 0: 0%....50%....100% - 9 passes
==PROF== Profiling "wgmma_gemm_kernel" - 1: 0%....50%....100% - 9 passes
==PROF== Profiling "wgmma_reduce_kernel" - 2: 0%....50%....100% - 9 passes
==PROF== Disconnected from process 4242
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"{CONFLICTS}","{LOADS}","{OCCUPANCY}"
"","","","","","","","","","","","","","%"
"0","4242","python3.12","127.0.0.1","simt_gemm_kernel","1","13","(256, 1, 1)","(1024, 1, 1)","0","9.0",\
"0","402,657,486","24.87"
"1","4242","python3.12","127.0.0.1","wgmma_gemm_kernel","1","13","(256, 1, 1)","(132, 1, 1)","0","9.0","12","n/a","12.4"
"2","4242","python3.12","127.0.0.1","wgmma_reduce_kernel(float *, int)","1","13","(256, 1, 1)","(64, 1, 1)","0","9.0",\
"0","","43.1"
"""
