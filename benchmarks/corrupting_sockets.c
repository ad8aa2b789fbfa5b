/* Flip one bit of each long read from a socket: a transport that corrupts data, for LD_PRELOAD.
 *
 * NCCL's sockets read with recv, gloo's with read. Short reads carry the libraries' own messages and are left alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LONG = 4096 };

static void flip(int descriptor, unsigned char *data, ssize_t length) {
    struct stat status;
    if (length >= LONG && fstat(descriptor, &status) == 0 && S_ISSOCK(status.st_mode))
        data[length / 2] ^= 0x40;
}

ssize_t recv(int descriptor, void *data, size_t size, int flags) {
    static ssize_t (*real)(int, void *, size_t, int);
    if (!real)
        real = (ssize_t(*)(int, void *, size_t, int))dlsym(RTLD_NEXT, "recv");
    ssize_t length = real(descriptor, data, size, flags);
    flip(descriptor, data, length);
    return length;
}

ssize_t read(int descriptor, void *data, size_t size) {
    static ssize_t (*real)(int, void *, size_t);
    if (!real)
        real = (ssize_t(*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    ssize_t length = real(descriptor, data, size);
    flip(descriptor, data, length);
    return length;
}
