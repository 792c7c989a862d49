//! Descriptors that were open when this program was started: of the shell or the system that started the service, or of
//! a library that does not close its own. Whoever holds them could read and lock files that are not theirs.

use std::fs;

/// Closes all but the standard three. It must come before this program opens anything itself.
pub(crate) fn close_inherited() {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else { return };
    let open: Vec<i32> = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for descriptor in open.into_iter().filter(|&descriptor| descriptor > 2) {
        // The one by which they were listed is closed already.
        let _ = nix::unistd::close(descriptor);
    }
}
