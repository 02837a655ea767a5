/* poke PATH OFFSET TEXT    writes TEXT through a shared mapping of PATH's first 2 MiB: device-DAX has no write call.
 * poke PATH OFFSET         prints the byte there as a number.
 * poke -z PATH             clears those 2 MiB: whatever was on the device is not found any more. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int main(int count, char **arguments) {
    if (count < 3) return 2;
    int clears = !strcmp(arguments[1], "-z");
    const char *path = arguments[clears ? 2 : 1];
    int device = open(path, O_RDWR);
    if (device < 0) return perror(path), 1;
    char *bytes = mmap(0, 2 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, device, 0);
    if (bytes == MAP_FAILED) return perror("mmap"), 1;
    if (clears) return memset(bytes, 0, 2 << 20), 0;
    size_t offset = strtoul(arguments[2], 0, 0), length = count > 3 ? strlen(arguments[3]) : 1;
    if (offset + length > 2 << 20) return fputs("beyond the first 2 MiB\n", stderr), 2;
    if (count > 3) memcpy(bytes + offset, arguments[3], length);
    else printf("%d\n", (unsigned char)bytes[offset]);
    return 0;
}
