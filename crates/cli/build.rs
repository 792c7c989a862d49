//! Where the command stands in memory.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    // Every run executes this program twice, as its supervisor and as what becomes its worker. A program that may be put
    // anywhere is corrected in 59,000 places whenever it begins, which costs more than all else that it does until then;
    // one that stands at a fixed place, as Go's do, is not. The libraries, the stack and the heap are put anywhere still.
    if is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") {
        println!("cargo::rustc-link-arg-bin=moira=-no-pie");
    }
}
