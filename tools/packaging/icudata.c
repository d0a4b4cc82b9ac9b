// ICU without its data, 31 MB that no program of Larder uses: libxml2 needs ICU, and libarchive libxml2. As in ICU's own
// "stubdata" library, this is a table of contents without entries.
#include <stdint.h>

const struct {
    uint16_t header_bytes;
    uint8_t magic[2];
    uint16_t info_bytes, reserved;
    uint8_t big_endian, charset, code_unit_bytes, reserved_too;
    uint8_t format[4], format_version[4], data_version[4];
    uint32_t entries[2];
} ICUDATA __attribute__((aligned(16))) = {32, {0xda, 0x27}, 20, 0, 0, 0, 2, 0, {'T', 'o', 'C', 'P'}, {1}, {0}, {0}};
