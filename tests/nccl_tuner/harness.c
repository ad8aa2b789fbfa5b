/* Asks a tuner plugin as NCCL does. Usage: harness PLUGIN VERSION, with commands on standard input:
 *
 *   begin RANKS NODES                       "begin CODE"
 *   costs ALGORITHMS PROTOCOLS COST ...     the cost table of the questions that follow
 *   ask COLLECTIVE BYTES [CHANNELS]         "answer CODE CHANNELS COST ..."; CHANNELS: what the field holds before
 *   time COLLECTIVE BYTES QUESTIONS         "ns NANOSECONDS" per question, with sizes from 0 to BYTES
 *   end                                     "end CODE"
 *
 * What the plugin logs is printed as "log LEVEL TEXT". The declarations follow NCCL's published headers, not the plugin.
 */

#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef void (*logger_t)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

typedef struct {
    const char *name;
    int (*init)(size_t ranks, size_t nodes, logger_t logger, void **context);
    int (*get)(void *, int, size_t, int, float **, int, int, int, int *);
    int (*destroy)(void *);
} v4_t;

typedef struct {
    const char *name;
    int (*init)(void **context, uint64_t comm, size_t ranks, size_t nodes, logger_t logger, void *nvl, void *constants);
    int (*get)(void *, int, size_t, int, float **, int, int, int, int *);
    int (*finalize)(void *);
    int (*chunk)(void *, int, size_t, int, int, int, size_t *); /* only in v6 */
} v6_t;

static void logger(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
    va_list arguments;
    (void)flags;
    (void)file;
    (void)line;
    printf("log %d ", level);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
}

static float costs[7 * 3], asked[7 * 3];
static int num_algorithms = 7, num_protocols = 3;

int main(int argc, char **argv) {
    if (argc != 3) return 64;
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        printf("dlopen %s\n", dlerror());
        return 1;
    }
    int version = atoi(argv[2]);
    char symbol[64];
    snprintf(symbol, sizeof(symbol), "ncclTunerPlugin_v%d", version);
    void *found = dlsym(library, symbol);
    if (found == NULL) {
        printf("no %s\n", symbol);
        return 1;
    }
    v4_t *v4 = found;
    v6_t *v6 = found;
    printf("plugin %s v%d\n", v4->name, version);
    if (version == 6 && v6->chunk != NULL) printf("chunk\n");
    static long constants[64], nvl[8];
    void *context = NULL;
    char line[4096];
    while (fgets(line, sizeof(line), stdin) != NULL) {
        char *rest = line, *word = strtok_r(rest, " \n", &rest);
        if (word == NULL) continue;
        if (strcmp(word, "begin") == 0) {
            size_t ranks = strtoull(strtok_r(NULL, " \n", &rest), NULL, 10);
            size_t nodes = strtoull(strtok_r(NULL, " \n", &rest), NULL, 10);
            int code = version == 4 ? v4->init(ranks, nodes, logger, &context)
                                    : v6->init(&context, 42, ranks, nodes, logger, nvl, constants);
            for (size_t i = 0; i < 64; i++)
                if (constants[i] != 0) printf("constants changed\n");
            printf("begin %d\n", code);
        } else if (strcmp(word, "costs") == 0) {
            num_algorithms = atoi(strtok_r(NULL, " \n", &rest));
            num_protocols = atoi(strtok_r(NULL, " \n", &rest));
            for (int i = 0; i < num_algorithms * num_protocols; i++) costs[i] = strtof(strtok_r(NULL, " \n", &rest), NULL);
        } else if (strcmp(word, "ask") == 0) {
            int collective = atoi(strtok_r(NULL, " \n", &rest));
            size_t bytes = strtoull(strtok_r(NULL, " \n", &rest), NULL, 10);
            char *given = strtok_r(NULL, " \n", &rest);
            int channels = given == NULL ? 0 : atoi(given);
            memcpy(asked, costs, sizeof(costs));
            int code = v6->get(context, collective, bytes, 1, (float **)(void *)asked, num_algorithms, num_protocols, 0,
                               &channels);
            printf("answer %d %d", code, channels);
            for (int i = 0; i < num_algorithms * num_protocols; i++) printf(" %g", asked[i]);
            printf("\n");
        } else if (strcmp(word, "time") == 0) {
            int collective = atoi(strtok_r(NULL, " \n", &rest));
            size_t bytes = strtoull(strtok_r(NULL, " \n", &rest), NULL, 10);
            long questions = atol(strtok_r(NULL, " \n", &rest));
            struct timespec begin, end;
            clock_gettime(CLOCK_MONOTONIC, &begin);
            for (long i = 0; i < questions; i++) {
                int channels = 0;
                memcpy(asked, costs, sizeof(costs));
                v6->get(context, collective, (size_t)(i * 2654435761u) % (bytes + 1), 1, (float **)(void *)asked,
                        num_algorithms, num_protocols, 0, &channels);
            }
            clock_gettime(CLOCK_MONOTONIC, &end);
            printf("ns %.1f\n", ((end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec)) / (double)questions);
        } else if (strcmp(word, "set") == 0) {
            char *name = strtok_r(NULL, " \n", &rest);
            setenv(name, strtok_r(NULL, " \n", &rest), 1);
        } else if (strcmp(word, "end") == 0) {
            printf("end %d\n", v6->finalize(context));
            context = NULL;
        }
    }
    return 0;
}
