# Writes OUT, a C++ file with the cluster files as string constants: cmake -DOUT=FILE -DFOLDER=DIR -P embed.cmake
file(GLOB files ${FOLDER}/*.json)
list(SORT files)
set(rows "")
foreach(file IN LISTS files)
  get_filename_component(name ${file} NAME_WE)
  file(READ ${file} text)
  string(APPEND rows "    {\"${name}\", R\"~cluster~(${text})~cluster~\"},\n")
endforeach()
file(WRITE ${OUT}.new "// Written by runtime/predict/embed.cmake.\n#include \"runtime/predict/known_clusters.h\"\n\n"
     "namespace trainctl::predict {\n\nstd::span<const KnownCluster> known_clusters() {\n"
     "  static constexpr KnownCluster kClusters[] = {\n${rows}  };\n  return kClusters;\n}\n\n"
     "}  // namespace trainctl::predict\n")
file(RENAME ${OUT}.new ${OUT})
