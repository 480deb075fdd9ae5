/* Tests every function of unisono.h, among processes without MPI. Exits with 0 if all results are right. */

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <unisono.h>

#define CHECK(condition)                                                                                  \
    do {                                                                                                  \
        if (!(condition)) {                                                                               \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, unisono_last_error());            \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)
#define OK(call) CHECK((call) == UNISONO_OK)

enum { COUNT = 12 };

static unisono_comm *comm;
static int rank, ranks;

/* Returns element i of rank r. */
static int64_t input(int r, int i)
{
    return 10 * r + i;
}

static void fill(int64_t *values)
{
    for (int i = 0; i < COUNT; i++)
        values[i] = input(rank, i);
}

/* Returns the sum over this many ranks. */
static int64_t prefix(int count, int i)
{
    int64_t sum = 0;
    for (int r = 0; r < count; r++)
        sum += input(r, i);
    return sum;
}

static int64_t sum(int i)
{
    return prefix(ranks, i);
}

static void each_collective(int blocks)
{
    int64_t values[COUNT];
    unisono_request *request = NULL;
    size_t start, length;
    const int root = ranks - 1;
    const unisono_call ring = {.algorithm = "ring", .label = "by name", .timeout_s = 60};

/* A call, or its non-blocking form. */
#define CALL(name, ...)                                                                                   \
    do {                                                                                                  \
        fill(values);                                                                                     \
        if (blocks) {                                                                                     \
            OK(unisono_##name(comm, values, COUNT, UNISONO_I64, __VA_ARGS__));                            \
        } else {                                                                                          \
            OK(unisono_##name##_async(comm, values, COUNT, UNISONO_I64, __VA_ARGS__, &request));          \
            OK(unisono_wait(&request));                                                                   \
            CHECK(request == NULL);                                                                       \
        }                                                                                                 \
    } while (0)

    OK(unisono_own_part(comm, COUNT, &start, &length));
    CALL(all_reduce, UNISONO_SUM, &ring);
    for (int i = 0; i < COUNT; i++)
        CHECK(values[i] == sum(i));
    CALL(reduce_scatter, UNISONO_SUM, NULL);
    for (size_t i = start; i < start + length; i++)
        CHECK(values[i] == sum((int)i));
    CALL(scan, UNISONO_SUM, NULL);
    for (int i = 0; i < COUNT; i++)
        CHECK(values[i] == prefix(rank + 1, i));
    CALL(exclusive_scan, UNISONO_SUM, NULL);
    for (int i = 0; i < COUNT && rank > 0; i++)
        CHECK(values[i] == prefix(rank, i));
    CALL(all_gather, NULL);
    for (size_t i = 0; i < length; i++)
        CHECK(values[start + i] == input(rank, (int)(start + i)));
    CHECK(values[COUNT - 1] == input(ranks - 1, COUNT - 1) && values[0] == input(0, 0));
    CALL(broadcast, root, NULL);
    CHECK(values[3] == input(root, 3));
    CALL(reduce, UNISONO_MAX, root, NULL);
    if (rank == root)
        CHECK(values[5] == input(ranks - 1, 5));
    CALL(gather, root, NULL);
    if (rank == root)
        CHECK(values[0] == input(0, 0));
    CALL(scatter, root, NULL);
    CHECK(length == 0 || values[start] == input(root, (int)start));
    if (COUNT % ranks == 0) {
        CALL(all_to_all, NULL);
        for (int r = 0; r < ranks; r++)
            CHECK(values[r * COUNT / ranks] == input(r, rank * COUNT / ranks));
    }
    if (blocks) {
        OK(unisono_barrier(comm, NULL));
    } else {
        int is_done = 0;
        OK(unisono_barrier_async(comm, NULL, &request));
        while (!is_done)
            OK(unisono_test(request, &is_done));
        OK(unisono_wait(&request));
    }
}

/* Parts of given sizes: rank r has r elements, and rank r sends r + s elements to rank s. */
static void given_parts(int blocks)
{
    enum { MOST = 64 };
    size_t counts[MOST], pairs[MOST], count = 0, between = 0;
    int64_t *values, *sent, *received;
    unisono_request *request = NULL;
    unisono_call options = {.label = "parts"}, wrong = {0};
    CHECK(ranks <= MOST);
    for (int r = 0; r < ranks; r++) {
        count += counts[r] = (size_t)r;
        between += pairs[r] = (size_t)(rank + r);
    }
    options.counts = counts;
    values = malloc((count + 1) * sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = rank;
    if (blocks) {
        OK(unisono_all_gather(comm, values, count, UNISONO_I64, &options));
    } else {
        OK(unisono_all_gather_async(comm, values, count, UNISONO_I64, &options, &request));
        OK(unisono_wait(&request));
    }
    for (int r = 0, i = 0; r < ranks; r++)
        for (int j = 0; j < r; j++)
            CHECK(values[i++] == r);
    wrong.counts = counts;
    CHECK(unisono_all_gather(comm, values, count + 1, UNISONO_I64, &wrong) == UNISONO_ERROR_ARGUMENT);
    CHECK(unisono_all_reduce(comm, values, count, UNISONO_I64, UNISONO_SUM, &wrong) == UNISONO_ERROR_ARGUMENT);

    sent = malloc((between + 1) * sizeof *sent);
    received = calloc(between + 1, sizeof *received);
    for (size_t i = 0; i < between; i++)
        sent[i] = rank;
    if (blocks) {
        OK(unisono_all_to_all_v(comm, sent, pairs, received, pairs, UNISONO_I64, NULL));
    } else {
        OK(unisono_all_to_all_v_async(comm, sent, pairs, received, pairs, UNISONO_I64, NULL, &request));
        OK(unisono_wait(&request));
    }
    for (int r = 0, i = 0; r < ranks; r++)
        for (int j = 0; j < rank + r; j++)
            CHECK(received[i++] == r);
    CHECK(unisono_all_to_all_v(comm, sent, NULL, received, pairs, UNISONO_I64, NULL) == UNISONO_ERROR_ARGUMENT);
    CHECK(unisono_all_to_all_v(comm, sent, pairs, received, pairs, UNISONO_I64, &wrong) == UNISONO_ERROR_ARGUMENT);
    if (ranks > 1)
        CHECK(unisono_all_to_all_v(comm, sent, pairs, sent, pairs, UNISONO_I64, NULL) == UNISONO_ERROR_ARGUMENT);
    free(values);
    free(sent);
    free(received);
}

/* Two plans in flight at once, repeatedly. */
static void plans(void)
{
    float sum[2];
    int64_t copied[5];
    unisono_plan *first = NULL, *second = NULL;
    unisono_comm *other = NULL;
    OK(unisono_plan_create(comm, "all_reduce", sum, 2, UNISONO_F32, UNISONO_SUM, -1, NULL, &first));
    OK(unisono_plan_create(comm, "broadcast", copied, 5, UNISONO_I64, -1, 0, NULL, &second));
    for (int step = 0; step < 5; step++) {
        sum[0] = sum[1] = (float)(rank + step);
        for (int i = 0; i < 5; i++)
            copied[i] = rank + step;
        OK(unisono_plan_start(comm, first));
        OK(unisono_plan_start(comm, second));
        CHECK(unisono_plan_start(comm, first) == UNISONO_ERROR_ARGUMENT);
        OK(unisono_plan_wait(comm, second));
        OK(unisono_plan_wait(comm, first));
        CHECK(unisono_plan_wait(comm, first) == UNISONO_ERROR_ARGUMENT);
        CHECK(sum[0] == (float)(ranks * (ranks - 1) / 2 + ranks * step) && sum[1] == sum[0]);
        CHECK(copied[0] == step && copied[4] == step);
    }
    OK(unisono_split(comm, 0, rank, &other));
    CHECK(unisono_plan_start(other, first) == UNISONO_ERROR_ARGUMENT);
    unisono_free(other);
    unisono_plan_free(first);
    unisono_plan_free(second);
    CHECK(unisono_plan_create(comm, "all_reduce", sum, 2, UNISONO_F32, -1, -1, NULL, &first) == UNISONO_ERROR_ARGUMENT);
    CHECK(unisono_plan_create(comm, "median", sum, 2, UNISONO_F32, 0, -1, NULL, &first) == UNISONO_ERROR_ARGUMENT);
}

/* Every type: the sum of ones. */
static void each_type(void)
{
    const union { float f32; double f64; uint16_t half; int32_t i32; int64_t i64; uint8_t u8; } ones[] = {
        {.f32 = 1}, {.f64 = 1}, {.half = 0x3c00}, {.half = 0x3f80}, {.i32 = 1}, {.i64 = 1}, {.u8 = 1}, {.i32 = 1}, {.i64 = 1},
    };
    const size_t sizes[] = {4, 8, 2, 2, 4, 8, 1, 4, 8};
    for (int dtype = UNISONO_F32; dtype <= UNISONO_U64; dtype++) {
        double value;
        memcpy(&value, &ones[dtype], sizeof value);
        OK(unisono_all_reduce(comm, &value, 1, dtype, UNISONO_PRODUCT, NULL));
        CHECK(memcmp(&value, &ones[dtype], sizes[dtype]) == 0);
    }
}

/* The composition of functions x -> a * x + b modulo 2^32: not commutative. */
struct line { uint32_t a, b; };

static int compose(void *context, void *left, const void *right, size_t count)
{
    size_t *calls = context;
    struct line one, other;
    for (size_t i = 0; i < count; i++) {
        memcpy(&one, (char *)left + i * sizeof one, sizeof one);
        memcpy(&other, (const char *)right + i * sizeof other, sizeof other);
        one = (struct line){one.a * other.a, one.a * other.b + one.b};
        memcpy((char *)left + i * sizeof one, &one, sizeof one);
    }
    *calls += 1;
    return 0;
}

static int longest(void *context, void *left, const void *right, size_t count)
{
    double *held = left;
    const double *arrived = right;
    for (size_t i = 0; i < count; i++)
        if (arrived[i] * arrived[i] > held[i] * held[i])
            held[i] = arrived[i];
    return context == NULL ? 0 : 1;
}

static struct line line_of(int of_rank, int i)
{
    return (struct line){(uint32_t)(2 * of_rank + 3), (uint32_t)(of_rank + i + 1)};
}

/* Counts of ranks are in elements of the reduction, not in bytes. */
static void lines_in_parts(int composed)
{
    enum { MOST = 64 };
    struct line lines[MOST] = {{0, 0}};
    size_t counts[MOST], size = sizeof *lines * (size_t)ranks;
    unisono_call options = {.counts = counts};
    for (int r = 0; r < ranks; r++)
        counts[r] = sizeof *lines;
    CHECK(unisono_reduce_scatter(comm, lines, size, UNISONO_U8, composed, &options) == UNISONO_ERROR_ARGUMENT);
    for (int r = 0; r < ranks; r++) {
        counts[r] = 1;
        lines[r] = (struct line){1, 2};
    }
    OK(unisono_reduce_scatter(comm, lines, size, UNISONO_U8, composed, &options));
    CHECK(lines[rank].a == 1 && lines[rank].b == (uint32_t)(2 * ranks));
}

static void reductions(void)
{
    static size_t calls;
    enum { LINES = 100 };
    int composed = -1, of_longest = -1;
    OK(unisono_reduction_create("compose", UNISONO_U8, sizeof(struct line), 0, compose, &calls, &composed));
    OK(unisono_reduction_create("longest", UNISONO_F64, 0, 1, longest, NULL, &of_longest));
    CHECK(composed != of_longest);
    for (int way = 0; way < 4; way++) {
        struct line lines[LINES];
        for (int i = 0; i < LINES; i++)
            lines[i] = line_of(rank, i);
        unisono_request *request = NULL;
        if (way == 0) {
            OK(unisono_all_reduce(comm, lines, sizeof lines, UNISONO_U8, composed, NULL));
        } else if (way == 1) {
            OK(unisono_scan_async(comm, lines, sizeof lines, UNISONO_U8, composed, NULL, &request));
            OK(unisono_wait(&request));
        } else if (way == 2) {
            unisono_plan *plan = NULL;
            OK(unisono_plan_create(comm, "all_reduce", lines, sizeof lines, UNISONO_U8, composed, -1, NULL, &plan));
            OK(unisono_plan_start(comm, plan));
            OK(unisono_plan_wait(comm, plan));
            unisono_plan_free(plan);
        } else {
            OK(unisono_reduce(comm, lines, sizeof lines, UNISONO_U8, composed, ranks - 1, NULL));
            if (rank < ranks - 1)
                continue;
        }
        for (int i = 0; i < LINES; i++) {
            struct line expected = line_of(0, i);
            for (int r = 1; r < (way == 1 ? rank + 1 : ranks); r++) {
                const struct line other = line_of(r, i);
                expected = (struct line){expected.a * other.a, expected.a * other.b + expected.b};
            }
            CHECK(lines[i].a == expected.a && lines[i].b == expected.b);
        }
    }
    CHECK(calls > 0 || ranks == 1);
    lines_in_parts(composed);
    double value = rank % 2 ? rank : -rank - 0.5;
    OK(unisono_all_reduce(comm, &value, 1, UNISONO_F64, of_longest, NULL));
    CHECK(value == (ranks % 2 ? -(ranks - 1) - 0.5 : ranks - 1));

    /* Invalid arguments are refused and change nothing. */
    int op = -1;
    uint32_t bits = 1U << rank;
    CHECK(unisono_reduction_create("odd", UNISONO_U8, 12, 0, compose, NULL, &op) == UNISONO_ERROR_ARGUMENT);
    CHECK(unisono_reduction_create("none", UNISONO_U8, 0, 0, NULL, NULL, &op) == UNISONO_ERROR_ARGUMENT);
    CHECK(unisono_all_reduce(comm, &value, 1, UNISONO_F32, of_longest, NULL) == UNISONO_ERROR_UNSUPPORTED);
    CHECK(strstr(unisono_last_error(), "longest") != NULL);
    CHECK(unisono_all_reduce(comm, &value, 1, UNISONO_F64, UNISONO_BIT_OR, NULL) == UNISONO_ERROR_UNSUPPORTED);
    OK(unisono_all_reduce(comm, &bits, 1, UNISONO_U32, UNISONO_BIT_OR, NULL));
    CHECK(bits == (1U << ranks) - 1);
    OK(unisono_all_reduce(comm, &bits, 1, UNISONO_U32, UNISONO_LOGICAL_AND, NULL));
    CHECK(bits == 1 || ranks == 1);
}

static int fails_on_rank_0(void *context, void *left, const void *right, size_t count)
{
    (void)left, (void)right, (void)count;
    return *(const int *)context == 0 ? 7 : 0;
}

/* An error of a reduction's function ends the call on all ranks, which get its rank and cause. */
static void failing_reductions(void)
{
    enum { MANY = 20000 };
    static float values[MANY];
    const unisono_call ring = {.algorithm = "ring"};
    int fails = -1;
    OK(unisono_reduction_create("fails", UNISONO_F32, 0, 1, fails_on_rank_0, &rank, &fails));
    for (int blocks = 0; blocks < 2 && ranks > 1; blocks++) {
        unisono_comm *group = NULL;
        unisono_request *request = NULL;
        int code = UNISONO_OK;
        OK(unisono_split(comm, 0, rank, &group));
        if (blocks) {
            code = unisono_all_reduce(group, values, MANY, UNISONO_F32, fails, &ring);
        } else {
            OK(unisono_all_reduce_async(group, values, MANY, UNISONO_F32, fails, &ring, &request));
            code = unisono_wait(&request);
        }
        CHECK(code == (rank == 0 ? UNISONO_ERROR_FAILED : UNISONO_ERROR_ABORTED) && unisono_failed_rank() == 0);
        CHECK(strstr(unisono_last_error(), "the function of the reduction `fails` returned 7") != NULL);
        CHECK(unisono_barrier(group, NULL) == UNISONO_ERROR_ABORTED && unisono_failed_rank() == 0);
        unisono_free(group);
    }
}

enum { TAGS = 20, TAGGED = 3000 };

static int looks;

static const char *look(void)
{
    looks++;
    return NULL;
}

/* The function of a thread runs during a wait for one of several messages. A wait for a core, if others have it, is as long. */
static void function_runs_during_waits_for_any(void)
{
    const struct timespec nap = {.tv_sec = 1};
    unisono_request *requests[2] = {NULL, NULL};
    int64_t value = rank;
    int done = -1;
    OK(unisono_barrier(comm, NULL));
    if (rank == 0) {
        nanosleep(&nap, NULL);
        OK(unisono_send(comm, &value, 1, UNISONO_I64, 1, NULL));
    } else if (rank == 1) {
        unisono_while_waiting(look);
        OK(unisono_receive_async(comm, &value, 1, UNISONO_I64, 0, NULL, &requests[1]));
        OK(unisono_wait_any(2, requests, &done));
        unisono_while_waiting(NULL);
        CHECK(done == 1 && value == 0 && looks > 0);
    }
}

/* Many messages in flight around a ring, received in another order than sent. */
static void tags(void)
{
    static float sent[TAGS][TAGGED], received[TAGS][TAGGED];
    unisono_request *sends[TAGS], *receives[TAGS];
    const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    for (int tag = 0; tag < TAGS; tag++) {
        unisono_call options = {.tag = tag};
        for (int index = 0; index < TAGGED; index++)
            sent[tag][index] = (float)(1000 * rank + tag);
        OK(unisono_send_async(comm, sent[tag], TAGGED, UNISONO_F32, next, &options, &sends[tag]));
    }
    for (int tag = TAGS - 1; tag >= 0; tag--) {
        unisono_call options = {.tag = tag};
        OK(unisono_receive_async(comm, received[tag], TAGGED, UNISONO_F32, before, &options, &receives[tag]));
    }
    for (int left = TAGS; left > 0; left--) {
        int tag = -1;
        OK(unisono_wait_any(TAGS, receives, &tag));
        CHECK(tag >= 0 && tag < TAGS && receives[tag] == NULL);
        CHECK(received[tag][0] == (float)(1000 * before + tag) && received[tag][TAGGED - 1] == received[tag][0]);
    }
    int none = 0;
    OK(unisono_wait_any(TAGS, receives, &none));
    CHECK(none == -1);
    OK(unisono_wait_all(TAGS, sends));
    CHECK(sends[0] == NULL && sends[TAGS - 1] == NULL);
    OK(unisono_wait_all(TAGS, sends));
    function_runs_during_waits_for_any();
}

static void messages(void)
{
    float one = (float)rank, other = -1;
    int from = -1;
    unisono_request *request = NULL;
    const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    if (ranks == 1) {
        CHECK(unisono_send(comm, &one, 1, UNISONO_F32, 0, NULL) == UNISONO_ERROR_ARGUMENT);
        CHECK(unisono_receive_any(comm, &one, 1, UNISONO_F32, &from, NULL) == UNISONO_ERROR_ARGUMENT);
        CHECK(unisono_receive_any_async(comm, &one, 1, UNISONO_F32, &from, NULL, &request) == UNISONO_ERROR_ARGUMENT);
        return;
    }
    if (rank % 2 == 0 && rank + 1 < ranks) {
        OK(unisono_send(comm, &one, 1, UNISONO_F32, next, NULL));
        OK(unisono_send(comm, &one, 1, UNISONO_F32, next, NULL));
        OK(unisono_receive_async(comm, &other, 1, UNISONO_F32, next, NULL, &request));
        OK(unisono_wait(&request));
        CHECK(other == (float)next);
    } else if (rank % 2 == 1) {
        OK(unisono_receive_any(comm, &other, 1, UNISONO_F32, &from, NULL));
        CHECK(from == before && other == (float)before);
        from = -1, other = -1;
        OK(unisono_receive_any_async(comm, &other, 1, UNISONO_F32, &from, NULL, &request));
        int is_done = -1;
        OK(unisono_wait_for(request, 60, &is_done));
        CHECK(is_done == 1 && unisono_wait_for(request, -1, &is_done) == UNISONO_ERROR_ARGUMENT);
        OK(unisono_wait(&request));
        CHECK(from == before && other == (float)before);
        OK(unisono_send_async(comm, &one, 1, UNISONO_F32, before, NULL, &request));
        OK(unisono_wait(&request));
    }
    OK(unisono_barrier(comm, NULL));
    tags();
    if (rank == 0)
        OK(unisono_send(comm, &one, 1, UNISONO_F32, 1, NULL));
    if (rank == 1) {
        OK(unisono_receive(comm, &other, 1, UNISONO_F32, 0, NULL));
        CHECK(other == 0);
    }
}

static void groups(void)
{
    unisono_comm *parity = NULL, *first = NULL;
    const int zero = 0;
    int64_t one = 1;
    OK(unisono_split(comm, rank % 2, -rank, &parity));
    CHECK(unisono_size(parity) == (ranks + 1 - rank % 2) / 2);
    OK(unisono_all_reduce(parity, &one, 1, UNISONO_I64, UNISONO_SUM, NULL));
    CHECK(one == unisono_size(parity));
    OK(unisono_group(comm, &zero, 1, &first));
    CHECK((first != NULL) == (rank == 0));
    unisono_free(first);
    unisono_free(parity);
    OK(unisono_split(comm, -1, 0, &parity));
    CHECK(parity == NULL);
}

/* The last rank leaves a group, and the others continue. The world remains usable. */
static void shrinks(void)
{
    unisono_comm *group = NULL;
    int64_t one = 1;
    OK(unisono_split(comm, 0, -rank, &group));
    CHECK(unisono_former_rank(group, 0) == -1);
    if (ranks == 1)
        OK(unisono_shrink(&group));
    else if (rank > 0) {
        int code;
        while ((code = unisono_all_reduce(group, &one, 1, UNISONO_I64, UNISONO_SUM, NULL)) == UNISONO_OK)
            ;
        CHECK(unisono_is_fatal(code) && unisono_failed_rank() == ranks - 1);
        OK(unisono_shrink(&group));
        CHECK(unisono_size(group) == ranks - 1 && unisono_rank(group) == ranks - 1 - rank);
        one = 1;
        OK(unisono_all_reduce(group, &one, 1, UNISONO_I64, UNISONO_SUM, NULL));
        CHECK(one == ranks - 1);
    }
    CHECK(unisono_former_rank(group, 0) == (ranks == 1 || rank > 0 ? 0 : -1));
    CHECK(unisono_former_rank(group, ranks) == -1 && unisono_former_rank(NULL, 0) == -1);
    unisono_free(group);
    group = NULL;
    CHECK(unisono_shrink(&group) == UNISONO_ERROR_ARGUMENT && unisono_shrink(NULL) == UNISONO_ERROR_ARGUMENT);
    OK(unisono_barrier(comm, NULL));
}

/* If no process joins a growing world, the world remains usable. */
static void grows(void)
{
    unisono_comm *grown = NULL;
    CHECK(unisono_grow(comm, 1, NULL, &grown) == UNISONO_ERROR_ARGUMENT && grown == NULL);
    CHECK(unisono_join(NULL, NULL, &grown) == UNISONO_ERROR_ARGUMENT && grown == NULL);
    OK(unisono_set_minimum_ranks(comm, 1));
    CHECK(unisono_set_minimum_ranks(NULL, 1) == UNISONO_ERROR_ARGUMENT);
}

static void compressors(void)
{
    /* A matrix of rank 1, and a vector. */
    enum { ROWS = 4, COLUMNS = 8, LENGTH = 5, FLOATS = ROWS * COLUMNS + LENGTH };
    const size_t rows[] = {ROWS, LENGTH}, columns[] = {COLUMNS, 1};
    const char *formats[] = {"int8", "int4", "onebit", "topk:0.5", "threshold:1", "powersgd:1"};
    for (size_t format = 0; format < sizeof formats / sizeof *formats; format++) {
        unisono_compressor *compressor = NULL;
        float values[FLOATS], state[4 * FLOATS];
        double sent = 0, true_sum = 0;
        OK(unisono_compressor_create(comm, formats[format], rows, columns, 2, &compressor));
        const size_t count = unisono_compressor_state_count(compressor);
        CHECK(count >= FLOATS && count <= sizeof state / sizeof *state);
        for (int step = 0; step < 4; step++) {
            int was_finite = 0;
            for (int i = 0; i < FLOATS; i++) {
                values[i] = (float)(1 + step) * (float)(rank + 1) * (i < ROWS * COLUMNS ? (float)(1 + i / COLUMNS) : 1);
                true_sum += (double)values[i];
            }
            OK(unisono_compress_all_reduce(comm, compressor, values, FLOATS, &was_finite));
            CHECK(was_finite == 1);
            for (int i = 0; i < FLOATS; i++)
                sent += (double)values[i];
            OK(unisono_compressor_save(compressor, state, count));
            unisono_compressor_free(compressor);
            OK(unisono_compressor_create(comm, formats[format], rows, columns, 2, &compressor));
            OK(unisono_compressor_load(compressor, state, count));
        }
        /* The residual is kept. */
        double left = 0;
        for (int i = 0; i < FLOATS; i++)
            left += (double)state[i];
        double sums[2] = {left, true_sum};
        OK(unisono_all_reduce(comm, sums, 2, UNISONO_F64, UNISONO_SUM, NULL));
        const double off = sent + sums[0] - sums[1];
        CHECK(off < 0.01 && off > -0.01);
        CHECK(unisono_compress_all_reduce(comm, compressor, values, 3, NULL) == UNISONO_ERROR_ARGUMENT);
        CHECK(unisono_compressor_load(compressor, state, count - 1) == UNISONO_ERROR_ARGUMENT);
        unisono_compressor_free(compressor);
    }
    unisono_compressor *none = NULL;
    CHECK(unisono_compressor_create(comm, "int7", rows, columns, 2, &none) == UNISONO_ERROR_ARGUMENT && none == NULL);
    const size_t huge[] = {SIZE_MAX / 2 + 1, SIZE_MAX / 2 + 1}, ones[] = {1, 1};
    CHECK(unisono_compressor_create(comm, "int8", huge, ones, 2, &none) == UNISONO_ERROR_ARGUMENT && none == NULL);
    const size_t many = (size_t)1 << 32;
    CHECK(unisono_compressor_create(comm, "topk:0.1", &many, ones, 1, &none) == UNISONO_ERROR_ARGUMENT && none == NULL);
    CHECK(unisono_compressor_create(comm, "threshold:1", &many, ones, 1, &none) == UNISONO_ERROR_ARGUMENT && none == NULL);
    CHECK(unisono_compressor_state_count(NULL) == 0);
}

/* Gathers the bytes of this process for two ranks, of which the second does not exist. */
static int gather_alone(void *context, const void *own, void *all, size_t size_bytes)
{
    memcpy(all, own, size_bytes);
    memcpy((char *)all + size_bytes, own, size_bytes);
    return context == NULL ? 0 : 1;
}

static const char *stop(void)
{
    return "stopped";
}

static void function_ends_a_start(void)
{
    unisono_comm *none = NULL;
    const unisono_settings settings = {.timeout_s = 20, .ignore_environment = 1};
    unisono_while_waiting(stop);
    CHECK(unisono_start(0, 2, gather_alone, NULL, &settings, &none) == UNISONO_ERROR_ABORTED && none == NULL);
    unisono_while_waiting(NULL);
    CHECK(strstr(unisono_last_error(), "stopped") != NULL);
}

static void refusals(void)
{
    float values[4] = {0};
    unisono_comm *none = NULL;
    unisono_request *request = NULL;
    const size_t counts[] = {4};
    const unisono_call wrong = {.algorithm = "quick"}, late = {.timeout_s = -1}, parts = {.counts = counts};
    const unisono_settings settings = {.algorithm = "quick"};
    CHECK(unisono_all_reduce(NULL, values, 4, UNISONO_F32, UNISONO_SUM, NULL) == UNISONO_ERROR_ARGUMENT);
    CHECK(unisono_all_reduce(comm, NULL, 4, UNISONO_F32, UNISONO_SUM, NULL) == UNISONO_ERROR_ARGUMENT);
    CHECK(unisono_all_reduce(comm, (char *)values + 1, 1, UNISONO_F32, UNISONO_SUM, NULL) == UNISONO_ERROR_ARGUMENT);
    CHECK(unisono_all_reduce(comm, values, 4, 99, UNISONO_SUM, NULL) == UNISONO_ERROR_ARGUMENT);
    CHECK(unisono_all_reduce(comm, values, 4, UNISONO_F32, 99, NULL) == UNISONO_ERROR_ARGUMENT);
    CHECK(unisono_broadcast(comm, values, 4, UNISONO_F32, ranks, NULL) == UNISONO_ERROR_ARGUMENT);
    CHECK(unisono_all_reduce(comm, values, 4, UNISONO_F32, UNISONO_SUM, &wrong) == UNISONO_ERROR_ARGUMENT);
    CHECK(strstr(unisono_last_error(), "quick") != NULL && strstr(unisono_last_error(), "ring") != NULL);
    CHECK(unisono_barrier(comm, &late) == UNISONO_ERROR_ARGUMENT);
    CHECK(unisono_barrier(comm, &parts) == UNISONO_ERROR_ARGUMENT);
    CHECK(unisono_gpu_synchronize(comm, NULL, &parts) == UNISONO_ERROR_ARGUMENT);
    CHECK(unisono_barrier_async(comm, &parts, &request) == UNISONO_ERROR_ARGUMENT && request == NULL);
    if (ranks > 1) {
        const int next = (rank + 1) % ranks;
        CHECK(unisono_send(comm, values, 4, UNISONO_F32, next, &parts) == UNISONO_ERROR_ARGUMENT);
        CHECK(unisono_receive_async(comm, values, 4, UNISONO_F32, next, &parts, &request) == UNISONO_ERROR_ARGUMENT);
        CHECK(strstr(unisono_last_error(), "counts of ranks") != NULL);
    }
    function_ends_a_start();
    CHECK(unisono_start_threads(0, NULL, &none) == UNISONO_ERROR_ARGUMENT && none == NULL);
    CHECK(unisono_start_launched(&settings, &none) == UNISONO_ERROR_ARGUMENT && none == NULL);
    CHECK(unisono_rank(NULL) == -1 && unisono_size(NULL) == -1 && unisono_address(NULL) == NULL);
    CHECK(!unisono_is_fatal(UNISONO_ERROR_ARGUMENT) && unisono_is_fatal(UNISONO_ERROR_TIMEOUT));
    unisono_free(NULL);
    unisono_release(NULL);
    /* The communicator remains usable after these errors. */
    OK(unisono_barrier(comm, NULL));
}

static void registered(void)
{
    unisono_memory *memory = NULL;
    OK(unisono_alloc(comm, 1 << 20, &memory));
    float *values = unisono_address(memory);
    CHECK(values[0] == 0);
    for (int i = 0; i < 1 << 18; i++)
        values[i] = 1;
    OK(unisono_all_reduce(comm, values, 1 << 18, UNISONO_F32, UNISONO_SUM, NULL));
    CHECK(values[(1 << 18) - 1] == (float)ranks);
    float copied[3] = { 0 };
    unisono_copy(copied, values + 1, sizeof copied);
    CHECK(copied[0] == (float)ranks && copied[2] == (float)ranks);
    unisono_release(memory);
}

/* The threads of this process. */
static int threads(void)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL);
    while (readdir(tasks) != NULL)
        count++;
    closedir(tasks);
    return count - 2;
}

/* A child that frees its copy of the communicator does not affect other processes. */
static void forked(void)
{
    int status = -1;
    const pid_t child = fork();
    if (child == 0) {
        const int refused = unisono_barrier(comm, NULL);
        unisono_free(comm);
        _exit(refused == UNISONO_ERROR_ARGUMENT ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(unisono_barrier(comm, NULL));
}

/* Mismatched calls return an error that names both, and lose the communicator. */
static void mismatch(void)
{
    float values[2] = {0};
    /* With more ranks, a third rank could still be in the previous barrier when two have failed, which would abort it too. */
    if (ranks != 2)
        return;
    const int code = unisono_all_reduce(comm, values, rank == 0 ? 1 : 2, UNISONO_F32, UNISONO_SUM, NULL);
    CHECK(code == UNISONO_ERROR_MISMATCH && unisono_is_fatal(code));
    CHECK(strstr(unisono_last_error(), "rank 0") != NULL && strstr(unisono_last_error(), "rank 1") != NULL);
    CHECK(unisono_fail(comm, "on purpose, in Latin-1: caf\xe9") == UNISONO_OK);
    CHECK(unisono_barrier(comm, NULL) == UNISONO_ERROR_ABORTED && unisono_failed_rank() == rank);
}

/* A key-value store: a file for each key. */
static void path_of(char *path, const char *key)
{
    int length = snprintf(path, 1024, "%s/", getenv("STORE"));
    for (; *key != '\0' && length < 1000; key++)
        path[length++] = *key == '/' ? '.' : *key;
    path[length] = '\0';
}

static int set(void *context, const char *key, const void *value, size_t size_bytes)
{
    char path[1024], draft[1032];
    path_of(path, key);
    snprintf(draft, sizeof draft, "%s.draft", path);
    FILE *file = fopen(draft, "wb");
    CHECK(context == &comm && file != NULL && fwrite(value, 1, size_bytes, file) == size_bytes && fclose(file) == 0);
    return rename(draft, path);
}

static int get(void *context, const char *key, void *value, size_t *size_bytes)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    char path[1024];
    FILE *file = NULL;
    path_of(path, key);
    for (int tries = 0; tries < 20000 && (file = fopen(path, "rb")) == NULL; tries++)
        nanosleep(&nap, NULL);
    if (context != &comm || file == NULL)
        return 1;
    *size_bytes = fread(value, 1, *size_bytes, file);
    return fclose(file);
}

int main(void)
{
    CHECK(unisono_last_error()[0] == '\0' && unisono_failed_rank() == -1);
    const unisono_settings settings = {.timeout_s = 60};
    if (getenv("STORE") != NULL) {
        const int own = atoi(getenv("RANK")), all = atoi(getenv("WORLD_SIZE"));
        CHECK(unisono_start_store(all, all, "w", set, get, &comm, NULL, &comm) == UNISONO_ERROR_ARGUMENT);
        OK(unisono_start_store(own, all, "world", set, get, &comm, &settings, &comm));
    } else {
        OK(unisono_start_launched(&settings, &comm));
    }
    rank = unisono_rank(comm);
    ranks = unisono_size(comm);
    CHECK(unisono_nodes(comm) >= 1 && unisono_nodes(comm) <= ranks);
    each_collective(1);
    /* Only non-blocking calls use a thread. */
    CHECK(threads() == 1);
    each_collective(0);
    CHECK(threads() == 2);
    given_parts(1);
    given_parts(0);
    plans();
    each_type();
    reductions();
    failing_reductions();
    messages();
    groups();
    shrinks();
    grows();
    compressors();
    refusals();
    registered();
    forked();
    mismatch();
    unisono_free(comm);
    printf("rank %d of %d: all right\n", rank, ranks);
    return 0;
}
