//! Ports at which the workers of a run meet. A port is drawn seconds before somebody listens at it, so it must be one that
//! the system gives to nobody else meanwhile: not one of those that outgoing connections get.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

/// Ports by turns, so that none comes again soon.
#[derive(Debug)]
pub(crate) struct Ports {
    /// Where the system takes none from by itself; empty if there are too few.
    own: Range<u16>,
    next: u16,
}

/// The first and the last port that outgoing connections get.
const OUTGOING: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// Below are those of well-known services, above those that Kubernetes gives to services.
const USUAL: Range<u16> = 20_000..30_000;
const FEWEST: usize = 1000;

impl Ports {
    pub(crate) fn new() -> Ports {
        let mut ports = Ports { own: beside(&fs::read_to_string(OUTGOING).unwrap_or_default()), next: 0 };
        // Two services on one machine begin at different places.
        let anywhere = RandomState::new().hash_one(()) % ports.own.len().max(1) as u64;
        ports.next = u16::try_from(anywhere).unwrap_or(0);
        ports
    }

    /// One that is free now.
    pub(crate) fn draw(&mut self) -> io::Result<u16> {
        for _ in 0..self.own.len() {
            let port = self.own.start + self.next;
            self.next = (self.next + 1) % self.own.len() as u16;
            if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
                return Ok(port);
            }
        }
        let anywhere = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        Ok(anywhere.local_addr()?.port())
    }
}

/// A range outside of the one whose first and last port these words are.
fn beside(outgoing: &str) -> Range<u16> {
    let mut words = outgoing.split_whitespace().map(|word| word.parse::<u16>().ok());
    let (Some(Some(first)), Some(Some(last))) = (words.next(), words.next()) else { return 0..0 };
    let below = USUAL.start..first.min(USUAL.end);
    let above = last.saturating_add(1)..u16::MAX;
    [below, above].into_iter().find(|range| range.len() >= FEWEST).unwrap_or(0..0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_one_that_an_outgoing_connection_may_get() {
        assert_eq!(beside("32768\t60999\n"), 20_000..30_000);
        assert_eq!(beside("25000 60999"), 20_000..25_000);
        assert_eq!(beside("1024 60999"), 61_000..65_535);
        assert_eq!(beside("1024 65535"), 0..0);
        assert_eq!(beside("what"), 0..0);
    }

    #[test]
    fn a_port_that_is_in_use_is_passed_over_and_none_comes_again_soon() {
        let mut ports = Ports::new();
        let first = ports.draw().unwrap();
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let held = TcpListener::bind((Ipv4Addr::LOCALHOST, taken)).unwrap();
        let mut narrow = Ports { own: taken..taken + 1, next: 0 };
        assert_ne!(narrow.draw().unwrap(), taken);
        drop(held);
        let mut drawn: Vec<u16> = (0..200).map(|_| ports.draw().unwrap()).chain([first]).collect();
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len(), 201);
    }
}
