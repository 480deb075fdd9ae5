// All NCCL functions that Unisono uses, with the version that introduced each. The build script binds them, `sys` resolves them,
// and the tests compare them. This file is included, since a build script cannot use the crate.

/// Calls a macro with the list.
macro_rules! functions {
    ($then:ident) => {
        $then! {
            ncclGetVersion "2.0",
            ncclGetUniqueId "2.0",
            ncclGetErrorString "2.0",
            ncclGetLastError "2.13",
            ncclCommInitRankConfig "2.14",
            ncclCommFinalize "2.14",
            ncclCommDestroy "2.0",
            ncclCommAbort "2.4",
            ncclCommGetAsyncError "2.4",
            ncclCommCount "2.0",
            ncclCommUserRank "2.0",
            ncclCommCuDevice "2.0",
            ncclAllReduce "2.0",
            ncclReduce "2.0",
            ncclBroadcast "2.2",
            ncclReduceScatter "2.0",
            ncclAllGather "2.0",
            ncclGroupStart "2.0",
            ncclGroupEnd "2.0",
        }
    };
}
