//! The supervisor and its workers as a program of their own, for this crate's tests: `DIR [--worker RANK [--shell NAME]]`.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [dir] if executors::supervise(Path::new(dir)).is_ok() => ExitCode::SUCCESS,
        [dir, "--worker", rank] if rank.parse::<u32>().is_ok() => {
            executors::become_worker(Path::new(dir), rank.parse().unwrap_or_default(), None)
        }
        [dir, "--worker", rank, "--shell", name] if rank.parse::<u32>().is_ok() => {
            executors::become_worker(Path::new(dir), rank.parse().unwrap_or_default(), Some(name))
        }
        _ => ExitCode::FAILURE,
    }
}
