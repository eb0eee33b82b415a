# Writes OUT, a C++ file with the JSON files of a folder as string constants, in the order of their names:
#   cmake -DOUT=FILE -DFOLDER=DIR -DROOM=predict -DTYPE=KnownCluster -DLIST=known_clusters -P embed.cmake
# The header runtime/ROOM/LIST.h declares TYPE and LIST.
file(GLOB files ${FOLDER}/*.json)
list(SORT files)
set(rows "")
foreach(file IN LISTS files)
  get_filename_component(name ${file} NAME_WE)
  file(READ ${file} text)
  string(APPEND rows "    {\"${name}\", R\"~file~(${text})~file~\"},\n")
endforeach()
file(WRITE ${OUT}.new "// Written by runtime/predict/embed.cmake.\n#include \"runtime/${ROOM}/${LIST}.h\"\n\n"
     "namespace trainctl::${ROOM} {\n\nstd::span<const ${TYPE}> ${LIST}() {\n"
     "  static constexpr ${TYPE} kFiles[] = {\n${rows}  };\n  return kFiles;\n}\n\n"
     "}  // namespace trainctl::${ROOM}\n")
file(RENAME ${OUT}.new ${OUT})
