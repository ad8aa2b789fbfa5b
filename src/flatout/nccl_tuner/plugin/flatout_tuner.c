/* Flatout's tuner for NCCL: a measured table says, by collective, bytes, ranks and nodes, which algorithm and protocol
 * to prefer and how many channels to use at most. Where the table has no row, nothing is touched.
 *
 * In: the table in FLATOUT_NCCL_TABLE. Out: the symbols ncclTunerPlugin_v4, _v5 and _v6, one of which NCCL looks up.
 * The declarations below are our own, written from the published description of the interface.
 *
 * What it will not do:
 *   - fail: NCCL ends all ranks if a tuner returns an error, so every function returns success, and a table that cannot
 *     be used is reported in NCCL's log and changes nothing;
 *   - offer what NCCL has excluded: cells of the cost table that are below 0 stay as they are;
 *   - act before the ranks have compared their tables: ranks that choose differently wait for each other for ever. The
 *     check in `flatout.inside.equal_tables` sets FLATOUT_NCCL_TABLE_COMPARED to the checksum of the table.
 */

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* NCCL's numbers. */
enum { SUCCESS = 0 };
enum { LOG_WARN = 2, LOG_INFO = 3 };
enum { LOG_TUNING = 0x40 };
enum { COLLNET_DIRECT = 2, COLLNET_CHAIN = 3 };

typedef void (*Logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

static const char *const COLLECTIVES[] = {"broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce"};
static const char *const ALGORITHMS[] = {"tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"};
static const char *const PROTOCOLS[] = {"ll", "ll128", "simple"};

#define COUNT(names) ((int)(sizeof(names) / sizeof((names)[0])))

enum { NUM_COLLECTIVES = 5 };
enum { ANY = -1 };
enum { MIN_CHANNELS = 1, MAX_CHANNELS = 64 };
enum { MAX_LINE = 255, MAX_ROWS = 100000, NUM_COLUMNS = 8 };
enum { MAX_FILE_BYTES = 16 << 20, MAX_PROBLEM = 512 };

static const char HEADING[] = "flatout-collective-table 1";

typedef struct {
    int collective;
    uint64_t min_bytes, max_bytes; /* both inclusive */
    int64_t ranks, nodes;          /* or ANY */
    int algorithm, protocol;       /* or ANY: NCCL's choice */
    int channels;                  /* at most; 0: NCCL's choice */
    int line;
} Row;

typedef struct {
    Row *rows; /* by collective, then by bytes */
    int num_rows;
    int first[NUM_COLLECTIVES + 1]; /* rows of collective c: first[c] .. first[c + 1] - 1 */
    uint32_t checksum;
    int is_decided, is_active;
    int has_logged_excluded;
    Logger logger;
    char path[4096];
} Tuner;

/* ---- the table ---- */

static uint32_t checksum_of(const unsigned char *text, size_t length) {
    uint32_t crc = 0xFFFFFFFFu; /* CRC-32, as zlib has it */
    for (size_t i = 0; i < length; i++) {
        crc ^= text[i];
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1u)));
    }
    return ~crc;
}

/* Return the content with a 0 at its end; NULL, with a problem, if it cannot be read. */
static char *read_file(const char *path, size_t *length, char *problem) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        snprintf(problem, MAX_PROBLEM, "it cannot be read: %s", strerror(errno));
        return NULL;
    }
    char *text = malloc(MAX_FILE_BYTES + 2);
    if (text == NULL) {
        snprintf(problem, MAX_PROBLEM, "there is no memory to read it");
        fclose(file);
        return NULL;
    }
    *length = fread(text, 1, MAX_FILE_BYTES + 1, file);
    int has_failed = ferror(file);
    fclose(file);
    if (has_failed || *length > MAX_FILE_BYTES) {
        snprintf(problem, MAX_PROBLEM, has_failed ? "it cannot be read" : "it has more than 16 MiB");
        free(text);
        return NULL;
    }
    text[*length] = 0;
    return text;
}

static int index_of(const char *name, const char *const *names, int count) {
    for (int i = 0; i < count; i++)
        if (strcmp(name, names[i]) == 0) return i;
    return ANY;
}

/* Read a whole number of digits only; return whether it is one, and not above the limit. */
static int read_number(const char *text, uint64_t most, uint64_t *number) {
    size_t length = strlen(text);
    if (length == 0 || length > 20 || strspn(text, "0123456789") != length) return 0;
    errno = 0;
    *number = strtoull(text, NULL, 10);
    return errno == 0 && *number <= most;
}

static int is_star(const char *text) { return strcmp(text, "*") == 0; }

static int read_choice(const char *what, const char *text, const char *const *names, int count, int *choice,
                       char *problem) {
    *choice = ANY;
    if (is_star(text)) return 1;
    *choice = index_of(text, names, count);
    if (*choice != ANY) return 1;
    snprintf(problem, MAX_PROBLEM, "`%s` is not %s", text, what);
    return 0;
}

static int read_count(const char *what, const char *text, int64_t *count, char *problem) {
    uint64_t number;
    *count = ANY;
    if (is_star(text)) return 1;
    if (!read_number(text, INT32_MAX, &number) || number == 0) {
        snprintf(problem, MAX_PROBLEM, "`%s` is not a number of %s", text, what);
        return 0;
    }
    *count = (int64_t)number;
    return 1;
}

static int read_bytes(char **cells, Row *row, char *problem) {
    if (!read_number(cells[1], UINT64_MAX, &row->min_bytes)) {
        snprintf(problem, MAX_PROBLEM, "`%s` is not a number of bytes", cells[1]);
        return 0;
    }
    row->max_bytes = UINT64_MAX;
    if (!is_star(cells[2]) && !read_number(cells[2], UINT64_MAX, &row->max_bytes)) {
        snprintf(problem, MAX_PROBLEM, "`%s` is not a number of bytes", cells[2]);
        return 0;
    }
    if (row->max_bytes < row->min_bytes) {
        snprintf(problem, MAX_PROBLEM, "the smallest size is above the largest: %s and %s", cells[1], cells[2]);
        return 0;
    }
    return 1;
}

static int read_channels(const char *text, int *channels, char *problem) {
    uint64_t number;
    *channels = 0;
    if (is_star(text)) return 1;
    if (!read_number(text, MAX_CHANNELS, &number) || number < MIN_CHANNELS) {
        snprintf(problem, MAX_PROBLEM, "`%s` is not a number of channels from %d to %d", text, MIN_CHANNELS,
                 MAX_CHANNELS);
        return 0;
    }
    *channels = (int)number;
    return 1;
}

static int read_row(char **cells, Row *row, char *problem) {
    row->collective = index_of(cells[0], COLLECTIVES, COUNT(COLLECTIVES));
    if (row->collective == ANY) {
        snprintf(problem, MAX_PROBLEM, "`%s` is not a collective", cells[0]);
        return 0;
    }
    return read_bytes(cells, row, problem) && read_count("ranks", cells[3], &row->ranks, problem) &&
           read_count("nodes", cells[4], &row->nodes, problem) &&
           read_choice("an algorithm", cells[5], ALGORITHMS, COUNT(ALGORITHMS), &row->algorithm, problem) &&
           read_choice("a protocol", cells[6], PROTOCOLS, COUNT(PROTOCOLS), &row->protocol, problem) &&
           read_channels(cells[7], &row->channels, problem);
}

/* Cut a line into its cells; return their number, up to one more than there should be. */
static int cut(char *line, char **cells) {
    int count = 0;
    for (;;) {
        line += strspn(line, " \t");
        if (*line == 0) return count;
        if (count == NUM_COLUMNS) return NUM_COLUMNS + 1;
        cells[count++] = line;
        line += strcspn(line, " \t");
        if (*line != 0) *line++ = 0;
    }
}

/* End the line that begins at `line` before its line feed; return the next line, NULL after the last. */
static char *end_line(char *line) {
    char *end = strchr(line, '\n');
    char *next = end == NULL ? NULL : end + 1;
    if (end == NULL) end = line + strlen(line);
    if (end > line && end[-1] == '\r') end--;
    *end = 0;
    return next;
}

static int by_bytes(const void *first, const void *second) {
    const Row *a = first, *b = second;
    if (a->collective != b->collective) return a->collective < b->collective ? -1 : 1;
    if (a->min_bytes != b->min_bytes) return a->min_bytes < b->min_bytes ? -1 : 1;
    return a->line < b->line ? -1 : a->line > b->line;
}

static int is_for(const Row *row, size_t ranks, size_t nodes) {
    return (row->ranks == ANY || (size_t)row->ranks == ranks) && (row->nodes == ANY || (size_t)row->nodes == nodes);
}

/* Read the rows for this number of ranks and nodes. Return whether all lines of the file are right. */
static int read_rows(Tuner *tuner, char *text, size_t ranks, size_t nodes, char *problem) {
    int capacity = 0, number = 0, num_all = 0;
    for (char *line = text; line != NULL;) {
        char *next = end_line(line);
        char *cells[NUM_COLUMNS + 1], what[MAX_PROBLEM];
        Row row;
        number++;
        if (strlen(line) > MAX_LINE) {
            snprintf(problem, MAX_PROBLEM, "line %d: it has more than %d characters", number, MAX_LINE);
            return 0;
        }
        if (number == 1) {
            if (strcmp(line, HEADING) != 0) {
                snprintf(problem, MAX_PROBLEM, "its first line is not `%s`", HEADING);
                return 0;
            }
            line = next;
            continue;
        }
        int num_cells = line[0] == '#' ? 0 : cut(line, cells);
        line = next;
        if (num_cells == 0) continue;
        if (num_cells != NUM_COLUMNS) {
            snprintf(problem, MAX_PROBLEM, "line %d: it must have %d columns", number, NUM_COLUMNS);
            return 0;
        }
        if (!read_row(cells, &row, what)) {
            snprintf(problem, MAX_PROBLEM, "line %d: %.400s", number, what);
            return 0;
        }
        if (++num_all > MAX_ROWS) {
            snprintf(problem, MAX_PROBLEM, "it has more than %d rows", MAX_ROWS);
            return 0;
        }
        if (!is_for(&row, ranks, nodes)) continue;
        row.line = number;
        if (tuner->num_rows == capacity) {
            capacity = capacity == 0 ? 64 : 2 * capacity;
            Row *more = realloc(tuner->rows, (size_t)capacity * sizeof(Row));
            if (more == NULL) {
                snprintf(problem, MAX_PROBLEM, "there is no memory for its rows");
                return 0;
            }
            tuner->rows = more;
        }
        tuner->rows[tuner->num_rows++] = row;
    }
    return 1;
}

/* Sort the rows; return whether at most one row applies to each collective and size. */
static int arrange(Tuner *tuner, char *problem) {
    if (tuner->num_rows > 0) qsort(tuner->rows, (size_t)tuner->num_rows, sizeof(Row), by_bytes);
    for (int i = 1; i < tuner->num_rows; i++) {
        const Row *before = &tuner->rows[i - 1], *row = &tuner->rows[i];
        if (before->collective != row->collective || before->max_bytes < row->min_bytes) continue;
        int first = before->line < row->line ? before->line : row->line;
        int second = before->line < row->line ? row->line : before->line;
        snprintf(problem, MAX_PROBLEM, "lines %d and %d overlap", first, second);
        return 0;
    }
    int at = 0;
    for (int collective = 0; collective <= NUM_COLLECTIVES; collective++) {
        while (at < tuner->num_rows && tuner->rows[at].collective < collective) at++;
        tuner->first[collective] = at;
    }
    return 1;
}

static const Row *find_row(const Tuner *tuner, int collective, size_t bytes) {
    if (collective < 0 || collective >= NUM_COLLECTIVES) return NULL;
    int low = tuner->first[collective], high = tuner->first[collective + 1];
    const int lowest = low;
    while (low < high) { /* the first row that begins above the size */
        int middle = low + (high - low) / 2;
        if (tuner->rows[middle].min_bytes <= bytes)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == lowest) return NULL;
    const Row *row = &tuner->rows[low - 1];
    return bytes <= row->max_bytes ? row : NULL;
}

/* ---- the answers ---- */

static void say(const Tuner *tuner, int level, const char *text) {
    if (tuner->logger != NULL) tuner->logger(level, LOG_TUNING, __FILE__, __LINE__, "flatout tuner: %s", text);
}

static void say_unused(const Tuner *tuner, const char *problem) {
    if (tuner->logger == NULL) return;
    tuner->logger(LOG_WARN, LOG_TUNING, __FILE__, __LINE__, "flatout tuner: %s is not used: %s", tuner->path, problem);
}

static int begin(void **context, Logger logger, size_t ranks, size_t nodes) {
    Tuner *tuner = calloc(1, sizeof(Tuner));
    *context = tuner;
    if (tuner == NULL) return SUCCESS;
    tuner->logger = logger;
    const char *path = getenv("FLATOUT_NCCL_TABLE");
    if (path == NULL || path[0] == 0) {
        say(tuner, LOG_INFO, "FLATOUT_NCCL_TABLE is not set: nothing is changed");
        return SUCCESS;
    }
    snprintf(tuner->path, sizeof(tuner->path), "%s", path);
    char problem[MAX_PROBLEM] = "";
    size_t length = 0;
    char *text = read_file(path, &length, problem);
    int is_usable = text != NULL;
    if (is_usable) {
        tuner->checksum = checksum_of((const unsigned char *)text, length);
        if (strlen(text) != length) {
            snprintf(problem, MAX_PROBLEM, "it is not a text");
            is_usable = 0;
        }
        is_usable = is_usable && read_rows(tuner, text, ranks, nodes, problem) && arrange(tuner, problem);
    }
    free(text);
    if (!is_usable) {
        tuner->num_rows = 0;
        memset(tuner->first, 0, sizeof(tuner->first));
        say_unused(tuner, problem);
        return SUCCESS;
    }
    char summary[MAX_PROBLEM];
    snprintf(summary, MAX_PROBLEM, "%d rows for %zu ranks on %zu nodes, checksum %08" PRIx32, tuner->num_rows, ranks,
             nodes, tuner->checksum);
    say(tuner, LOG_INFO, summary);
    return SUCCESS;
}

/* Decide at the first question whether the table may be used: by then the ranks have compared their tables. */
static int is_active(Tuner *tuner) {
    if (tuner->is_decided) return tuner->is_active;
    tuner->is_decided = 1;
    if (tuner->num_rows == 0) return 0;
    char checksum[16];
    snprintf(checksum, sizeof(checksum), "%08" PRIx32, tuner->checksum);
    const char *compared = getenv("FLATOUT_NCCL_TABLE_COMPARED");
    tuner->is_active = compared != NULL && strcmp(compared, checksum) == 0;
    if (!tuner->is_active) say_unused(tuner, "the ranks have not compared it");
    return tuner->is_active;
}

/* Return the place of the cheapest available cell that the row allows; ANY if none is available. */
static int cheapest(const float *costs, int num_algorithms, int num_protocols, int algorithm, int protocol) {
    int best = ANY;
    for (int a = 0; a < num_algorithms; a++) {
        if (algorithm != ANY && a != algorithm) continue;
        for (int p = 0; p < num_protocols; p++) {
            int place = a * num_protocols + p;
            if (protocol != ANY && p != protocol) continue;
            if (costs[place] < 0) continue; /* NCCL has excluded it */
            if (best == ANY || costs[place] < costs[best]) best = place;
        }
    }
    return best;
}

static void apply(Tuner *tuner, const Row *row, float *costs, int num_algorithms, int num_protocols, int *channels) {
    if (row->algorithm != ANY || row->protocol != ANY) {
        int place = cheapest(costs, num_algorithms, num_protocols, row->algorithm, row->protocol);
        if (place == ANY) {
            if (!tuner->has_logged_excluded) {
                char text[MAX_PROBLEM];
                snprintf(text, MAX_PROBLEM, "line %d has no effect: NCCL has excluded its choice here", row->line);
                say(tuner, LOG_INFO, text);
            }
            tuner->has_logged_excluded = 1;
            return; /* its channels were measured with that choice */
        }
        costs[place] = 0.0f;
    }
    if (row->channels == 0) return;
    int winner = cheapest(costs, num_algorithms, num_protocols, ANY, ANY);
    int algorithm = winner == ANY ? ANY : winner / num_protocols;
    if (algorithm == COLLNET_DIRECT || algorithm == COLLNET_CHAIN) return; /* NCCL does not limit them to what it has */
    *channels = row->channels;
}

static int answer(void *context, int collective, size_t bytes, int pipelined, float **table, int num_algorithms,
                  int num_protocols, int is_registered, int *channels) {
    (void)pipelined;
    (void)is_registered;
    Tuner *tuner = context;
    if (tuner == NULL || table == NULL || channels == NULL) return SUCCESS;
    if (!is_active(tuner)) return SUCCESS;
    const Row *row = find_row(tuner, collective, bytes);
    /* NCCL declares `float **` and passes one array of num_algorithms rows with num_protocols cells each. */
    if (row != NULL) apply(tuner, row, (float *)(void *)table, num_algorithms, num_protocols, channels);
    return SUCCESS;
}

static int end(void *context) {
    Tuner *tuner = context;
    if (tuner != NULL) free(tuner->rows);
    free(tuner);
    return SUCCESS;
}

/* ---- the interfaces ---- */

typedef int (*Answer)(void *, int, size_t, int, float **, int, int, int, int *);

static int begin_v4(size_t ranks, size_t nodes, Logger logger, void **context) {
    return begin(context, logger, ranks, nodes);
}

static int begin_v5(void **context, uint64_t communicator, size_t ranks, size_t nodes, Logger logger, void *domains,
                    void *constants) {
    (void)communicator;
    (void)domains;
    (void)constants; /* of NCCL's cost model, which stay as they are */
    return begin(context, logger, ranks, nodes);
}

typedef struct {
    const char *name;
    int (*init)(size_t, size_t, Logger, void **);
    Answer get_coll_info;
    int (*destroy)(void *);
} TunerV4;

typedef struct {
    const char *name;
    int (*init)(void **, uint64_t, size_t, size_t, Logger, void *, void *);
    Answer get_coll_info;
    int (*finalize)(void *);
} TunerV5;

typedef struct {
    const char *name;
    int (*init)(void **, uint64_t, size_t, size_t, Logger, void *, void *);
    Answer get_coll_info;
    int (*finalize)(void *);
    int (*get_chunk_size)(void *, int, size_t, int, int, int, size_t *); /* NULL: NCCL's own sizes */
} TunerV6;

EXPORT const TunerV4 ncclTunerPlugin_v4 = {"flatout", begin_v4, answer, end};
EXPORT const TunerV5 ncclTunerPlugin_v5 = {"flatout", begin_v5, answer, end};
EXPORT const TunerV6 ncclTunerPlugin_v6 = {"flatout", begin_v5, answer, end, NULL};
