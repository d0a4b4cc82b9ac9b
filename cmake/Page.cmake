# The page that the daemons serve, as bytes in base/server: bundled from page/ with the npm packages of its lock file.
# Without them the daemons serve page/missing.html.
set(LARDER_PAGE AUTO CACHE STRING "Build the page into the daemons: AUTO (if its npm packages can be had), ON or OFF")
set(page_source ${PROJECT_SOURCE_DIR}/page)
set(page_output ${PROJECT_BINARY_DIR}/page)
set(page_packages "")
find_program(NODE node)
find_program(NPM npm)
if(LARDER_PAGE AND NODE AND NPM)
    execute_process(COMMAND ${page_source}/install OUTPUT_VARIABLE page_packages ERROR_VARIABLE page_error
        RESULT_VARIABLE page_result OUTPUT_STRIP_TRAILING_WHITESPACE TIMEOUT 300)
    if(NOT page_result EQUAL 0)
        set(page_packages "")
        set(page_problem "npm cannot fetch its packages: ${page_error}")
    endif()
elseif(LARDER_PAGE)
    set(page_problem "node or npm is missing")
endif()
if(LARDER_PAGE STREQUAL "ON" AND NOT page_packages)
    message(FATAL_ERROR "The page cannot be built: ${page_problem}")
endif()

if(page_packages)
    set(page_files ${page_output}/index.html ${page_output}/page.js ${page_output}/page.css)
    file(GLOB_RECURSE page_sources CONFIGURE_DEPENDS ${page_source}/src/*)
    add_custom_command(OUTPUT ${page_files}
        COMMAND ${NODE} ${page_source}/build.mjs ${page_packages} ${page_output}
        DEPENDS ${page_sources} ${page_source}/build.mjs ${page_source}/index.html ${page_source}/package-lock.json
        COMMENT "Bundling the page" VERBATIM)
else()
    if(LARDER_PAGE AND NOT LARDER_PAGE_MISSING_TOLD)
        message(NOTICE "The daemons will have no page: ${page_problem}")
        set(LARDER_PAGE_MISSING_TOLD ON CACHE INTERNAL "")
    endif()
    set(page_files ${page_output}/index.html)
    configure_file(${page_source}/missing.html ${page_output}/index.html COPYONLY)
endif()

set(page_embedded ${page_output}/page_files.cc)
add_custom_command(OUTPUT ${page_embedded}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${page_embedded} "-DFILES=${page_files}" -P ${PROJECT_SOURCE_DIR}/cmake/EmbedPage.cmake
    DEPENDS ${page_files} ${PROJECT_SOURCE_DIR}/cmake/EmbedPage.cmake
    COMMENT "Embedding the page" VERBATIM)
target_sources(larder_base_server PRIVATE ${page_embedded})
