/* A stand-in for NCCL that only checks its arguments. */
#include <stdint.h>
#include <string.h>

#include <nccl.h>

static int depth, calls;

/* A call with wrong arguments fails, and reports the expected ones. */
static char last[256];
#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            strcpy(last, #condition);                                                                                  \
            return ncclInvalidArgument;                                                                                \
        }                                                                                                              \
    } while (0)

static struct ncclComm *const COMM = (struct ncclComm *)0x1000;
static char *const DATA = (char *)0x20000;
static struct CUstream_st *const STREAM = (struct CUstream_st *)0x3000;

ncclResult_t ncclGetVersion(int *version) { *version = 23203; return ncclSuccess; }
ncclResult_t ncclGetUniqueId(ncclUniqueId *id) { memset(id->internal, 7, sizeof id->internal); return ncclSuccess; }
const char *ncclGetErrorString(ncclResult_t result) { return result == ncclInvalidArgument ? "invalid" : "other"; }
const char *ncclGetLastError(ncclComm_t comm) { (void)comm; return last; }

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
    EXPECT(ranks == 4 && rank == 3);
    EXPECT(id.internal[0] == 7 && id.internal[127] == 7);
    EXPECT(config->magic == 0xcafebeef && config->blocking == 0);
    EXPECT(config->size >= sizeof *config && config->version >= NCCL_VERSION_CODE);
    /* The first field that only later headers have. */
    *comm = COMM;
    return ncclInProgress;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) { EXPECT(comm == COMM); return ncclInProgress; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) { EXPECT(comm == COMM); return ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t comm) { EXPECT(comm == COMM); return ncclSuccess; }
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
    /* In progress at first, then done, then failed. */
    static const ncclResult_t states[] = {ncclInProgress, ncclSuccess, ncclRemoteError};
    EXPECT(comm == COMM);
    *error = states[calls++ % 3];
    return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) { EXPECT(comm == COMM); *count = 4; return ncclSuccess; }
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) { EXPECT(comm == COMM); *rank = 3; return ncclSuccess; }
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device) { EXPECT(comm == COMM); *device = 1; return ncclSuccess; }

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
    EXPECT(send == DATA && receive == DATA && count == 100 && type == ncclFloat32 && op == ncclSum);
    EXPECT(comm == COMM && stream == STREAM);
    return ncclSuccess;
}
ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
    EXPECT(send == DATA && receive == DATA && count == 100 && type == ncclFloat32 && op == ncclMax && root == 2);
    EXPECT(comm == COMM && stream == STREAM);
    return ncclSuccess;
}
ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    EXPECT(send == DATA && receive == DATA && count == 100 && type == ncclFloat32 && root == 1);
    EXPECT(comm == COMM && stream == STREAM);
    return ncclSuccess;
}
/* In place: the part of rank 3 of four. */
ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t receive_count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    EXPECT(send == DATA && receive == DATA + 300 && receive_count == 25 && type == ncclFloat32 && op == ncclMin);
    EXPECT(comm == COMM && stream == STREAM);
    return ncclSuccess;
}
ncclResult_t ncclAllGather(const void *send, void *receive, size_t send_count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    EXPECT(send == DATA + 300 && receive == DATA && send_count == 25 && type == ncclFloat32);
    EXPECT(comm == COMM && stream == STREAM);
    return ncclSuccess;
}
ncclResult_t ncclGroupStart(void) { EXPECT(depth == 0); ++depth; return ncclSuccess; }
ncclResult_t ncclGroupEnd(void) { EXPECT(depth == 1); --depth; return ncclInProgress; }
