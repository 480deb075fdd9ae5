/* Decisions in a file: one line for each class of calls and number of ranks and nodes, so that a later run makes the same ones. */

/* For realpath. */
#define _XOPEN_SOURCE 700

#include "accelerate.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The first and the last line, which show that the file is complete. The bytes of a class of all sizes are below 1. */
static const char FIRST_LINE[] = "# unisono accelerate: function, reduction, type, ranks, nodes, bytes below, carried out by\n";
static const char LAST_LINE[] = "end\n";
static const char *const SIDE_NAMES[SIDES] = { [MPI_SIDE] = "mpi", [UNISONO_SIDE] = "unisono" };

struct decision {
    struct class class;
    int ranks, nodes;
    enum side side;
};

/* The decisions to replay. */
static struct decision *decisions;
static size_t count;

/* On rank 0, the file of UNISONO_ACCELERATE_RECORD, whose decisions may be those that this run replays, and the new file that replaces it at
 * the end; NULL if there is none. */
static char *record_name, *new_name;

/* Returns the decision on a class, or NULL. */
static struct decision *decision_on(const struct class *class, int ranks, int nodes)
{
    for (struct decision *decision = decisions; decision < decisions + count; decision++)
        /* A class has no padding. */
        if (memcmp(&decision->class, class, sizeof(*class)) == 0 && decision->ranks == ranks && decision->nodes == nodes)
            return decision;
    return NULL;
}

bool record_has(const struct class *class, const struct world *world)
{
    const struct decision *decision = decision_on(class, world->ranks, world->nodes);
    return decision != NULL && decision->side == UNISONO_SIDE;
}

static const char *name_of(int number, const char *const names[])
{
    return number == NONE ? "-" : names[number];
}

/* Parses a line of the file. Returns whether it is a decision. */
static bool is_parsed(const char *line, struct decision *decision)
{
    char function[32], op[32], dtype[32], side[32];
    long below;
    int end = 0;
    int fields = sscanf(line, "%31s %31s %31s %d %d %ld %31s\n%n", function, op, dtype, &decision->ranks, &decision->nodes, &below, side,
                        &end);
    if (fields != 7 || line[end] != '\0' || below < 1 || decision->ranks < 2 || decision->nodes < 1)
        return false;
    decision->class = (struct class){
        number_of(function, FUNCTION_NAMES, FUNCTIONS),
        number_of(op, REDUCTION_NAMES, REDUCTIONS),
        number_of(dtype, DTYPE_NAMES, DTYPES),
        size_of_class((size_t)below - 1),
    };
    int named = number_of(side, SIDE_NAMES, SIDES);
    decision->side = named == UNISONO_SIDE ? UNISONO_SIDE : MPI_SIDE;
    bool is_known = (decision->class.op != NONE || strcmp(op, "-") == 0) && decision->class.dtype != NONE;
    return is_known && decision->class.function != NONE && named != NONE && (below & (below - 1)) == 0;
}

/* Returns a hash of every byte (FNV-1a), which is not 0. */
static uint64_t hash(uint64_t so_far, const char *text)
{
    for (; *text != '\0'; text++)
        so_far = (so_far ^ (unsigned char)*text) * 0x100000001b3;
    return so_far | 1;
}

uint64_t record_read(const char *name)
{
    char line[256] = "";
    uint64_t all = 0xcbf29ce484222325;
    FILE *file = fopen(name, "re");
    if (file == NULL) {
        fprintf(stderr, "unisono: cannot read the decisions in `%s`: %s\n", name, strerror(errno));
        return 0;
    }
    int number = 1;
    bool is_valid = fgets(line, sizeof(line), file) != NULL && strcmp(line, FIRST_LINE) == 0;
    while (is_valid && fgets(line, sizeof(line), file) != NULL && strcmp(line, LAST_LINE) != 0) {
        number++;
        decisions = realloc(decisions, (count + 1) * sizeof(*decisions));
        is_valid = decisions != NULL && is_parsed(line, &decisions[count]);
        count += is_valid;
        all = hash(all, line);
    }
    is_valid = is_valid && strcmp(line, LAST_LINE) == 0 && fgetc(file) == EOF;
    fclose(file);
    if (!is_valid)
        fprintf(stderr, "unisono: the decisions in `%s` are damaged after line %d: write them anew by UNISONO_ACCELERATE_RECORD\n", name,
                number);
    return is_valid ? all : 0;
}

/* Returns the name of a file that also holds once the program has changed its folder. A symbolic link stays, and its file is replaced. */
static char *absolute(const char *name)
{
    char *target = realpath(name, NULL);
    if (target != NULL)
        return target;
    char *folder = *name == '/' ? NULL : getcwd(NULL, 0);
    if (folder == NULL)
        return strdup(name);
    char *whole = allocated(strlen(folder) + strlen(name) + 2);
    sprintf(whole, "%s/%s", folder, name);
    free(folder);
    return whole;
}

/* Returns whether the new file can be created. If not, `errno` is set. */
static bool can_create(const char *new_name)
{
    FILE *file = fopen(new_name, "we");
    return file != NULL && fclose(file) == 0 && remove(new_name) == 0;
}

bool record_begin(void)
{
    int rank;
    char host[64] = "";
    struct stat existing;
    const char *name = getenv("UNISONO_ACCELERATE_RECORD");
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank != 0 || name == NULL || *name == '\0')
        return true;
    record_name = absolute(name);
    new_name = allocated(strlen(record_name) + sizeof(host) + 32);
    /* Other runs may record under the same name, also on other hosts. */
    gethostname(host, sizeof(host) - 1);
    sprintf(new_name, "%s.%s.%ld.new", record_name, host, (long)getpid());
    const char *problem = NULL;
    if (stat(record_name, &existing) == 0 && !S_ISREG(existing.st_mode))
        problem = "it is not a regular file";
    else if (!can_create(new_name))
        problem = strerror(errno);
    if (problem != NULL)
        fprintf(stderr, "unisono: cannot record decisions in `%s`: %s\n", name, problem);
    return problem == NULL;
}

bool record_may_be_wanted(void)
{
    int rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank != 0 || new_name != NULL;
}

/* Returns the decisions of this rank's trials, and their number. */
static struct decision *own_decisions(int *own)
{
    *own = 0;
    for (const struct row *row = report_rows(); row != NULL; row = row->next)
        *own += row->trial[MPI_SIDE] > 0;
    struct decision *all = allocated((size_t)(*own + 1) * sizeof(*all)), *next = all;
    for (const struct row *row = report_rows(); row != NULL; row = row->next)
        if (row->trial[MPI_SIDE] > 0)
            *next++ = (struct decision){ row->class, row->ranks, row->nodes, row->chosen };
    return all;
}

/* Adds a decision of another rank. If communicators have decided differently, MPI carries out the calls of both. */
static void add(struct decision decision)
{
    struct decision *same = decision_on(&decision.class, decision.ranks, decision.nodes);
    if (same == NULL)
        decisions[count++] = decision;
    else if (decision.side == MPI_SIDE)
        same->side = MPI_SIDE;
}

/* Returns the decisions of all ranks in the order of ranks, on rank 0, and their number; NULL if a rank of a fault-tolerant MPI has failed. On
 * MPI_COMM_WORLD, calls of this library could match unmatched calls of the program. */
static struct decision *gathered(int *all)
{
    int rank, ranks, own;
    PMPI_Comm_rank(own_world, &rank);
    PMPI_Comm_size(own_world, &ranks);
    struct decision *mine = own_decisions(&own);
    int *bytes = allocated(2 * sizeof(int) * (size_t)ranks), *starts = bytes + ranks, own_bytes = own * (int)sizeof(*mine);
    bool is_done = PMPI_Gather(&own_bytes, 1, MPI_INT, bytes, 1, MPI_INT, 0, own_world) == MPI_SUCCESS;
    int next = 0;
    for (int other = 0; is_done && rank == 0 && other < ranks; other++) {
        starts[other] = next;
        next += bytes[other];
    }
    struct decision *of_all = allocated((size_t)next + 1);
    is_done = is_done && PMPI_Gatherv(mine, own_bytes, MPI_BYTE, of_all, bytes, starts, MPI_BYTE, 0, own_world) == MPI_SUCCESS;
    free(mine);
    free(bytes);
    *all = next / (int)sizeof(*of_all);
    if (is_done)
        return of_all;
    free(of_all);
    return NULL;
}

static void write_decision(FILE *file, const struct decision *decision)
{
    const struct class *class = &decision->class;
    fprintf(file, "%s %s %s %d %d %ld %s\n", FUNCTION_NAMES[class->function], name_of(class->op, REDUCTION_NAMES),
            name_of(class->dtype, DTYPE_NAMES), decision->ranks, decision->nodes, 1L << class->size, SIDE_NAMES[decision->side]);
}

/* Writes these decisions, and the replayed ones. */
static void write_all(const struct decision *of_all, int all)
{
    struct decision *both = allocated((count + (size_t)all + 1) * sizeof(*both));
    if (count > 0)
        memcpy(both, decisions, count * sizeof(*both));
    free(decisions);
    decisions = both;
    for (int i = 0; i < all; i++)
        add(of_all[i]);
    FILE *file = fopen(new_name, "we");
    if (file != NULL) {
        fputs(FIRST_LINE, file);
        for (size_t i = 0; i < count; i++)
            write_decision(file, &decisions[i]);
        fputs(LAST_LINE, file);
    }
    bool has_failed = file == NULL || ferror(file) != 0;
    if (file == NULL || fclose(file) != 0 || has_failed || rename(new_name, record_name) != 0) {
        fprintf(stderr, "unisono: the decisions are not recorded: %s\n", strerror(errno));
        remove(new_name);
    }
}

void record_write(void)
{
    int all;
    if (!settings.is_recorded)
        return;
    struct decision *of_all = gathered(&all);
    if (new_name != NULL && of_all != NULL)
        write_all(of_all, all);
    else if (new_name != NULL)
        fprintf(stderr, "unisono: the decisions are not recorded, since a rank has failed\n");
    free(of_all);
}
