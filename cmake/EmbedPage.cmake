# cmake -DOUTPUT=FILE.cc -DFILES=LIST -P EmbedPage.cmake: writes the files' bytes as the constants of
# base/server/page.h, each under its name. g++ 12 has no #embed.
set(arrays "")
set(table "")
set(number 0)
foreach(file IN LISTS FILES)
    get_filename_component(name "${file}" NAME)
    file(READ "${file}" bytes HEX)
    string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
    string(REGEX REPLACE "((0x..,){24})" "\\1\n" bytes "${bytes}")
    string(APPEND arrays "constexpr unsigned char kFile${number}[] = {\n${bytes}};\n")
    string(APPEND table "    EmbeddedFile{\"${name}\", kFile${number}},\n")
    math(EXPR number "${number} + 1")
endforeach()
file(WRITE "${OUTPUT}" "// Made by cmake/EmbedPage.cmake.
#include <array>

#include \"base/server/page.h\"

namespace larder {
namespace {

${arrays}
constexpr std::array kFiles{
${table}};

}  // namespace

std::span<const EmbeddedFile> embedded_page() {
    return kFiles;
}

}  // namespace larder
")
