/* Reductions whose values MPI_Reduce_local combines: MPI_MAXLOC and MPI_MINLOC, types that Unisono does not reduce, and user-defined
 * operations. Results are exact, and compared with those of MPI's own functions. Run it with the library preloaded, and without. */

#include "ranks.h"

#include <complex.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Elements of a type, and an operation on them. Members are compared, since bytes between them have no value. */
struct elements {
    const char *name;
    size_t bytes;
    void (*fill)(void *array, long count);
    bool (*is_same)(const void *a, const void *b, long count);
    MPI_Datatype type;
    MPI_Op op;
    /* Where the padding after the members starts, in which a program may have other values; 0 if there is none. */
    size_t padding;
};

/* Random numbers from 0 to `below`, different on every rank, and common ones. */
static unsigned own_state, common_state;

static int next(unsigned *state, int below)
{
    *state = *state * 1664525 + 1013904223;
    return (int)((*state >> 8) % (unsigned)below);
}

#define OWN(below) next(&own_state, below)
#define COMMON(below) next(&common_state, below)

enum { CALLS = 11, IN_PLACE = 6 };

static const char *const NAMES[CALLS] = {
    "all-reduce",          "reduce",          "reduce-scatter of blocks",          "reduce-scatter",          "scan",          "exclusive scan",
    "all-reduce in place", "reduce in place", "reduce-scatter of blocks in place", "reduce-scatter in place", "scan in place",
};

#define CALL(prefix, from, to)                                                                   \
    switch (call % IN_PLACE) {                                                                   \
    case 0:                                                                                      \
        prefix##Allreduce(from, to, n, of->type, of->op, comm);                                  \
        break;                                                                                   \
    case 1:                                                                                      \
        /* MPICH 4.0.2 itself crashes in place with other roots. */                              \
        root = call < IN_PLACE ? root : 0;                                                       \
        prefix##Reduce(rank == root ? from : values, to, n, of->type, of->op, root, comm);       \
        break;                                                                                   \
    case 2:                                                                                      \
        prefix##Reduce_scatter_block(from, to, n, of->type, of->op, comm);                       \
        break;                                                                                   \
    case 3:                                                                                      \
        prefix##Reduce_scatter(from, to, counts, of->type, of->op, comm);                        \
        break;                                                                                   \
    case 4:                                                                                      \
        prefix##Scan(from, to, n, of->type, of->op, comm);                                       \
        break;                                                                                   \
    default:                                                                                     \
        prefix##Exscan(from, to, n, of->type, of->op, comm);                                     \
    }

static bool is_in_padding(const struct elements *of, size_t byte)
{
    return of->padding > 0 && byte % of->bytes >= of->padding;
}

/* A call of `n` elements, or in some of `n` for each rank. */
static void make(const struct elements *of, int call, int n, MPI_Comm comm)
{
    size_t all = of->bytes * (size_t)(n * ranks);
    char *values = calloc(1, all), *ours = calloc(1, all), *theirs = calloc(1, all);
    int root = COMMON(ranks), counts[ranks];
    for (int i = 0; i < ranks; i++)
        counts[i] = n;
    of->fill(values, (long)n * ranks);
    const void *from = values;
    if (call >= IN_PLACE) {
        from = MPI_IN_PLACE;
        memcpy(ours, values, all), memcpy(theirs, values, all);
    }
    for (size_t i = 0; i < all; i++)
        if (is_in_padding(of, i))
            values[i] = 1, ours[i] = 2;
    CALL(MPI_, from, ours)
    for (size_t i = 0; i < all; i++)
        check(!is_in_padding(of, i) || ours[i] == 2, "a reduction changes values between its elements");
    CALL(PMPI_, from, theirs)
    bool is_gotten = call % IN_PLACE == 1 ? rank == root : call % IN_PLACE != 5 || rank > 0;
    bool is_right = !is_gotten || of->is_same(ours, theirs, n);
    if (!is_right)
        fprintf(stderr, "%s, %s of %d\n", of->name, NAMES[call], n);
    check(is_right, "a reduction is wrong");
    free(values), free(ours), free(theirs);
}

/* Elements whose members are `a` and `b`, filled by these values. */
#define MEMBERS(name, element, a_value, b_value)                                                 \
    static void fill_##name(void *array, long count)                                             \
    {                                                                                            \
        element *elements = array;                                                               \
        for (long i = 0; i < count; i++) {                                                       \
            elements[i].a = a_value;                                                             \
            elements[i].b = b_value;                                                             \
        }                                                                                        \
    }                                                                                            \
    static bool is_same_##name(const void *first, const void *second, long count)                \
    {                                                                                            \
        const element *one = first, *other = second;                                             \
        for (long i = 0; i < count; i++)                                                         \
            if (one[i].a != other[i].a || one[i].b != other[i].b)                                \
                return false;                                                                    \
        return true;                                                                             \
    }

#define PAIR(name, value, index)                                                                 \
    struct name {                                                                                \
        value a;                                                                                 \
        index b;                                                                                 \
    };                                                                                           \
    MEMBERS(name, struct name, (value)(OWN(5) - 2), (index)OWN(5))

/* Few values, so that the lower index often decides. */
PAIR(float_int, float, int)
PAIR(double_int, double, int)
PAIR(long_int, long, int)
PAIR(two_int, int, int)
PAIR(short_int, short, int)
PAIR(long_double_int, long double, int)
PAIR(two_real, float, float)
PAIR(two_double, double, double)

#define OF_PAIR(name, type) { #name, sizeof(struct name), fill_##name, is_same_##name, type, MPI_MAXLOC }

static void pairs(MPI_Comm comm, const int *sizes)
{
    struct elements pairs[] = {
        OF_PAIR(float_int, MPI_FLOAT_INT),       OF_PAIR(double_int, MPI_DOUBLE_INT),
        OF_PAIR(long_int, MPI_LONG_INT),         OF_PAIR(two_int, MPI_2INT),
        OF_PAIR(short_int, MPI_SHORT_INT),       OF_PAIR(long_double_int, MPI_LONG_DOUBLE_INT),
        OF_PAIR(two_real, MPI_2REAL),            OF_PAIR(two_double, MPI_2DOUBLE_PRECISION),
        OF_PAIR(two_int, MPI_2INTEGER),
    };
    for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++)
        for (int call = 0; call < CALLS; call++) {
            MPI_Aint lower, extent;
            MPI_Type_get_true_extent(pairs[i].type, &lower, &extent);
            pairs[i].op = COMMON(2) ? MPI_MAXLOC : MPI_MINLOC;
            pairs[i].padding = (size_t)extent;
            make(&pairs[i], call, sizes[COMMON(4)] + COMMON(3), comm);
        }
}

/* Single values, small enough for exact results. */
#define VALUES(name, value)                                                                      \
    static void fill_##name(void *array, long count)                                             \
    {                                                                                            \
        value *values = array;                                                                   \
        for (long i = 0; i < count; i++)                                                         \
            values[i] = (value)(1 + OWN(2));                                                     \
    }                                                                                            \
    static bool is_same_##name(const void *first, const void *second, long count)                \
    {                                                                                            \
        const value *one = first, *other = second;                                               \
        for (long i = 0; i < count; i++)                                                         \
            if (one[i] != other[i])                                                              \
                return false;                                                                    \
        return true;                                                                             \
    }

VALUES(int8, int8_t)
VALUES(int16, int16_t)
VALUES(uint16, uint16_t)
VALUES(int32, int32_t)
VALUES(long_double, long double)
VALUES(complex_float, float complex)
VALUES(complex_long_double, long double complex)

#define OF_VALUES(name, type, op) { #name, sizeof((name##_value){ 0 }), fill_##name, is_same_##name, type, op }

typedef int8_t int8_value;
typedef int16_t int16_value;
typedef uint16_t uint16_value;
typedef int32_t int32_value;
typedef long double long_double_value;
typedef float complex complex_float_value;
typedef long double complex complex_long_double_value;

static void other_types(MPI_Comm comm, const int *sizes)
{
    const struct elements types[] = {
        OF_VALUES(int8, MPI_SIGNED_CHAR, MPI_SUM),
        OF_VALUES(int8, MPI_INT8_T, MPI_LAND),
        OF_VALUES(int16, MPI_SHORT, MPI_PROD),
        OF_VALUES(int16, MPI_INT16_T, MPI_MIN),
        OF_VALUES(uint16, MPI_UINT16_T, MPI_LXOR),
        OF_VALUES(uint16, MPI_UNSIGNED_SHORT, MPI_SUM),
        OF_VALUES(long_double, MPI_LONG_DOUBLE, MPI_SUM),
        OF_VALUES(long_double, MPI_LONG_DOUBLE, MPI_MAX),
        OF_VALUES(complex_float, MPI_C_FLOAT_COMPLEX, MPI_PROD),
        OF_VALUES(complex_long_double, MPI_C_LONG_DOUBLE_COMPLEX, MPI_SUM),
    };
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
        for (int call = 0; call < CALLS; call++)
            make(&types[i], call, sizes[COMMON(4)] + COMMON(3), comm);
}

/* The thread that called MPI, and the type that it passed. */
static pthread_t caller;
static MPI_Datatype given_type;

static void check_arguments(const void *in, const void *inout, MPI_Datatype type, size_t alignment)
{
    check(pthread_equal(pthread_self(), caller), "an operation is called on another thread");
    check(type == given_type, "an operation does not get the type of the call");
    check((uintptr_t)in % alignment == 0 && (uintptr_t)inout % alignment == 0, "an operation gets values that are not aligned");
}

/* The function x -> a x + b modulo 2^32. The operation is the composition, which is not commutative. */
struct affine {
    uint32_t a, b;
};
MEMBERS(affine, struct affine, 2 * (uint32_t)OWN(1000) + 1, (uint32_t)OWN(100000))

static void compose(void *in, void *inout, int *count, MPI_Datatype *type)
{
    const struct affine *left = in;
    struct affine *right = inout;
    check_arguments(in, inout, *type, alignof(struct affine));
    for (int i = 0; i < *count; i++)
        right[i] = (struct affine){ left[i].a * right[i].a, left[i].a * right[i].b + left[i].b };
}

/* Strings of digits, as a number and a power of ten for its length. Elements of 24 bytes, which is no power of two. */
struct digits {
    uint64_t a, b, factor;
};
MEMBERS(digits, struct digits, (elements[i].factor = 10, (uint64_t)OWN(10)), 1)

static void append(void *in, void *inout, int *count, MPI_Datatype *type)
{
    const struct digits *left = in;
    struct digits *right = inout;
    check_arguments(in, inout, *type, alignof(struct digits));
    for (int i = 0; i < *count; i++)
        right[i] = (struct digits){ left[i].a * right[i].factor + right[i].a, left[i].b + right[i].b, left[i].factor * right[i].factor };
}

/* Elements of 16 bytes, for which instructions may need alignment, with and without trailing padding. */
struct pair {
    alignas(16) uint64_t a;
    uint64_t b;
};
struct spread {
    alignas(32) uint64_t a;
    uint64_t b;
};
MEMBERS(pair, struct pair, (uint64_t)OWN(1000), (uint64_t)OWN(1000))
MEMBERS(spread, struct spread, (uint64_t)OWN(1000), (uint64_t)OWN(1000))

static void add_pairs(void *in, void *inout, int *count, MPI_Datatype *type)
{
    const struct pair *left = in;
    struct pair *right = inout;
    check_arguments(in, inout, *type, alignof(struct pair));
    for (int i = 0; i < *count; i++)
        right[i] = (struct pair){ left[i].a + right[i].a, left[i].b ^ right[i].b };
}

static void add_spread(void *in, void *inout, int *count, MPI_Datatype *type)
{
    const uint64_t *left = in;
    uint64_t *right = inout;
    check_arguments(in, inout, *type, alignof(uint64_t));
    for (int i = 0; i < *count; i++, left += sizeof(struct spread) / 8, right += sizeof(struct spread) / 8) {
        right[0] += left[0];
        right[1] ^= left[1];
    }
}

/* Elements that are larger than the registered memory. */
enum { LARGE = 1 << 16 };

static void fill_large(void *array, long count)
{
    fill_int32(array, count * LARGE);
}

static bool is_same_large(const void *first, const void *second, long count)
{
    return is_same_int32(first, second, count * LARGE);
}

static void largest(void *in, void *inout, int *count, MPI_Datatype *type)
{
    const int32_t *left = in;
    int32_t *right = inout;
    check_arguments(in, inout, *type, alignof(int32_t));
    for (int i = 0; i < *count; i++)
        right[i] = left[i] > right[i] ? left[i] : right[i];
}

static void largest_of_large(void *in, void *inout, int *count, MPI_Datatype *type)
{
    const int32_t *left = in;
    int32_t *right = inout;
    check_arguments(in, inout, *type, alignof(int32_t));
    for (long i = 0; i < (long)*count * LARGE; i++)
        right[i] = left[i] > right[i] ? left[i] : right[i];
}

/* A type of an integer and some more behind it, of this extent. */
static MPI_Datatype structure(int more, MPI_Aint extent)
{
    const MPI_Datatype members[] = { MPI_UINT64_T, MPI_UINT64_T };
    MPI_Datatype made, resized;
    MPI_Type_create_struct(2, (int[]){ 1, more }, (MPI_Aint[]){ 0, sizeof(uint64_t) }, members, &made);
    MPI_Type_create_resized(made, 0, extent, &resized);
    MPI_Type_commit(&resized);
    MPI_Type_free(&made);
    return resized;
}

static void by_operation(struct elements of, MPI_User_function *function, bool is_commutative, MPI_Comm comm, const int *sizes)
{
    MPI_Op_create(function, is_commutative, &of.op);
    given_type = of.type;
    for (int call = 0; call < CALLS; call++)
        make(&of, call, sizes[COMMON(4)] + COMMON(3), comm);
    MPI_Op_free(&of.op);
}

#define OF_MEMBERS(name, type) { #name, sizeof(struct name), fill_##name, is_same_##name, type, MPI_OP_NULL }

static void operations(MPI_Comm comm, const int *sizes)
{
    const int few[] = { 1, 2, 3, 4 };
    MPI_Datatype large, of_digits = structure(2, sizeof(struct digits)), of_pair, of_spread = structure(1, sizeof(struct spread));
    MPI_Type_contiguous(LARGE, MPI_INT, &large);
    MPI_Type_contiguous(2, MPI_UINT64_T, &of_pair);
    MPI_Type_commit(&large);
    MPI_Type_commit(&of_pair);
    by_operation((struct elements)OF_MEMBERS(affine, MPI_UINT64_T), compose, false, comm, sizes);
    by_operation((struct elements)OF_VALUES(int32, MPI_INT, MPI_OP_NULL), largest, true, comm, sizes);
    by_operation((struct elements)OF_MEMBERS(digits, of_digits), append, false, comm, sizes);
    by_operation((struct elements)OF_MEMBERS(pair, of_pair), add_pairs, true, comm, sizes);
    by_operation((struct elements)OF_MEMBERS(spread, of_spread), add_spread, true, comm, sizes);
    by_operation((struct elements){ "large", LARGE * sizeof(int32_t), fill_large, is_same_large, large, MPI_OP_NULL }, largest_of_large,
                 true, comm, few);
    MPI_Type_free(&large);
    MPI_Type_free(&of_digits);
    MPI_Type_free(&of_pair);
    MPI_Type_free(&of_spread);
}

static void all_on(MPI_Comm comm)
{
    const int sizes[] = { 1, 40, 700, 20000 };
    MPI_Comm_rank(comm, &rank);
    pairs(comm, sizes);
    other_types(comm, sizes);
    operations(comm, sizes);
}

int main(int argc, char **argv)
{
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    own_state = (unsigned)rank;
    caller = pthread_self();
    all_on(MPI_COMM_WORLD);
    MPI_Comm reversed;
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reversed);
    all_on(reversed);
    MPI_Comm_free(&reversed);
    if (rank == 0)
        printf("%d ranks: all right\n", ranks);
    MPI_Finalize();
    return 0;
}
