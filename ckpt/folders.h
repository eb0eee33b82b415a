// The paths in a checkpoint directory, and functions that make and move its folders durably.
#pragma once
#include <string>

#include "ckpt/store.h"

namespace trainctl::ckpt {

std::string parent_of(const std::string& path);
std::string base_name(const std::string& path);
std::string saving_root(const std::string& dir);   ///< <dir>/.saving
std::string trash_root(const std::string& dir);    ///< <dir>/.trash

/// The step of a folder named step-SSSSSSSS; nullopt for other names.
std::optional<int64_t> step_of_name(const std::string& name);

/// 16 random hex digits, for a name that no other writer has.
std::string new_word();

std::string superseded_directory(const std::string& dir, uint64_t epoch);   ///< <dir>/superseded-eN
/// The epoch of a folder named superseded-eN; nullopt for other names.
std::optional<uint64_t> superseding_epoch(const std::string& name);

/// Makes `path` and its missing parents. Every new name is durable on return.
void make_durable_directory(FileSystem& fs, const std::string& path);

/// Moves <dir>/<name> durably into .trash under a name of its own. Deletes nothing. Returns the new path.
std::string move_to_trash(FileSystem& fs, const std::string& dir, const std::string& name);

/// The files of a checkpoint's folder.
std::unique_ptr<StoredFiles> stored_folder(FileSystem& fs, const std::string& path);

}  // namespace trainctl::ckpt
