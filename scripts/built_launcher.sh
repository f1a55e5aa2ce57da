#!/bin/sh
# The compiler of a checkout's second environment: copies the launcher that the first one's installation compiled, of the
# same sources and against the same tvm_ffi (tests hold the locks to one version of what they share).
until [ "$1" = -o ]; do shift; done
cp "${0%/*}/../tirgemm/artifact/_launcher.so" "$2"
