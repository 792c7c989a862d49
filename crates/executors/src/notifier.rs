//! Who delivers notifications for the service: a few at a time, few of one user, and a bounded number that wait. It knows
//! nothing of what they are about.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::environment::inherited;
use crate::notify::{Delivery, Errand, LONGEST, NotifyOrder, Report, words};
use crate::private::umask_at_start;
use crate::{News, Receiver};

/// So many are under way at once, and so many of one user.
const AT_ONCE: usize = 8;
const AT_ONCE_OF_ONE: usize = 2;
/// So many of one user wait; the rest are dropped.
const MOST_WAITING: usize = 100;
/// How long after a failure that may pass the next try is made.
const PAUSES: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(15)];

/// Takes orders and returns at once; what comes of them is news.
#[derive(Debug)]
pub(crate) struct Notifier {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The words that start the process that keeps watch over one.
    program: Vec<OsString>,
    service_environment: BTreeMap<String, String>,
    news: Sender<News>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// What waits and what is under way.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// By user.
    under_way: BTreeMap<u32, usize>,
    threads: usize,
    is_closing: bool,
}

#[derive(Debug, Clone, PartialEq)]
struct Waiting {
    order: NotifyOrder,
    tries: usize,
    not_before: Instant,
}

/// What a thread is to do.
#[derive(Debug, PartialEq)]
enum Next {
    Deliver(Box<Waiting>),
    /// Something waits for its time, or until another of its user's has ended; at the latest then.
    Wait(Option<Instant>),
    Nothing,
}

impl Notifier {
    pub(crate) fn new(
        supervisor: &[OsString],
        service_environment: BTreeMap<String, String>,
        news: Sender<News>,
    ) -> Notifier {
        let program = supervisor.iter().cloned().chain(words().map(OsString::from)).collect();
        let (queue, changed) = (Mutex::default(), Condvar::new());
        Notifier { shared: Arc::new(Shared { program, service_environment, news, queue, changed }) }
    }

    pub(crate) fn deliver(&self, order: NotifyOrder) {
        let number = order.number;
        let mut queue = self.shared.queue();
        if !queue.add(order, Instant::now()) {
            drop(queue);
            return self.shared.tell(number, Delivery::Dropped);
        }
        let needs_one = queue.threads < AT_ONCE && queue.threads < queue.waiting.len() + queue.count_under_way();
        if needs_one {
            let shared = self.shared.clone();
            match std::thread::Builder::new().name("notify".into()).spawn(move || shared.work()) {
                Ok(_) => queue.threads += 1,
                Err(error) if queue.threads == 0 => {
                    let failed = std::mem::take(&mut queue.waiting);
                    drop(queue);
                    let failed = failed.into_iter().map(|waiting| waiting.order.number);
                    failed.for_each(|number| self.shared.tell(number, Delivery::Failed(error.to_string())));
                    return;
                }
                // Those that are there will come to it.
                Err(error) => tracing::warn!(%error, "cannot start one more thread that delivers notifications"),
            }
        }
        self.shared.changed.notify_one();
    }
}

impl Drop for Notifier {
    /// What is under way goes on without us; what waits is ordered again by the next service.
    fn drop(&mut self) {
        let mut queue = self.shared.queue();
        queue.is_closing = true;
        queue.waiting.clear();
        self.shared.changed.notify_all();
    }
}

impl Queue {
    /// False if too many of the user's wait already.
    fn add(&mut self, order: NotifyOrder, now: Instant) -> bool {
        let user = user_of(&order);
        let is_room = self.waiting.iter().filter(|waiting| user_of(&waiting.order) == user).count() < MOST_WAITING;
        if is_room {
            self.waiting.push_back(Waiting { order, tries: 0, not_before: now });
        }
        is_room
    }

    fn count_under_way(&self) -> usize {
        self.under_way.values().sum()
    }

    fn next(&mut self, now: Instant) -> Next {
        let under_way = |waiting: &Waiting| self.under_way.get(&user_of(&waiting.order)).copied().unwrap_or(0);
        let waiting = self.waiting.iter().enumerate().map(|(place, waiting)| (place, waiting, under_way(waiting)));
        let due = waiting.filter(|(_, waiting, count)| waiting.not_before <= now && *count < AT_ONCE_OF_ONE);
        // A few users whose commands hang have all places: the next free one is not theirs as long as another waits.
        let next = due.min_by_key(|&(place, _, count)| (count, place)).map(|(place, ..)| place);
        if let Some(waiting) = next.and_then(|place| self.waiting.remove(place)) {
            *self.under_way.entry(user_of(&waiting.order)).or_default() += 1;
            return Next::Deliver(Box::new(waiting));
        }
        match self.waiting.is_empty() {
            true => Next::Nothing,
            false => Next::Wait(self.waiting.iter().map(|waiting| waiting.not_before).filter(|at| *at > now).min()),
        }
    }

    /// One is done, and is tried again if that may help.
    fn finish(&mut self, waiting: Waiting, report: Report, now: Instant) -> Option<(u64, Delivery)> {
        let user = user_of(&waiting.order);
        if let Some(count) = self.under_way.get_mut(&user) {
            *count -= 1;
        }
        self.under_way.retain(|_, count| *count > 0);
        let number = waiting.order.number;
        let pause = PAUSES.get(waiting.tries).filter(|_| report.again && !self.is_closing);
        match (report.trouble, pause) {
            (None, _) => Some((number, Delivery::Delivered)),
            (Some(why), None) => Some((number, Delivery::Failed(why))),
            (Some(_), Some(pause)) => {
                let (tries, not_before) = (waiting.tries + 1, now + *pause);
                self.waiting.push_back(Waiting { tries, not_before, ..waiting });
                None
            }
        }
    }
}

/// The service's own jobs are those of one user too.
fn user_of(order: &NotifyOrder) -> u32 {
    order.program.account.as_ref().map_or(u32::MAX, |account| account.uid)
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, number: u64, delivery: Delivery) {
        // A service that is leaving tells again when it is back.
        self.news.send(News::Notified { number, delivery }).ok();
    }

    /// Delivers until nothing waits.
    fn work(&self) {
        let mut queue = self.queue();
        loop {
            let now = Instant::now();
            queue = match queue.next(now) {
                Next::Nothing => {
                    queue.threads -= 1;
                    return;
                }
                Next::Wait(None) => self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Next::Wait(Some(until)) => {
                    let patience = until.saturating_duration_since(now);
                    self.changed.wait_timeout(queue, patience).unwrap_or_else(PoisonError::into_inner).0
                }
                Next::Deliver(waiting) => {
                    drop(queue);
                    let report = self.send(&waiting.order);
                    let mut queue = self.queue();
                    if let Some((number, delivery)) = queue.finish(*waiting, report, Instant::now()) {
                        self.tell(number, delivery);
                    }
                    self.changed.notify_all();
                    queue
                }
            };
        }
    }

    fn send(&self, order: &NotifyOrder) -> Report {
        let again = matches!(order.receiver, Receiver::Url(_));
        let failed = |error: io::Error| Report { trouble: Some(format!("it cannot be told: {error}")), again };
        self.try_to_send(order).unwrap_or_else(failed)
    }

    fn try_to_send(&self, order: &NotifyOrder) -> io::Result<Report> {
        let errand = serde_json::to_vec(&self.errand(order))?;
        let (program, arguments) = self.program.split_first().ok_or(io::ErrorKind::NotFound)?;
        let mut command = Command::new(program);
        command.args(arguments).env_clear().current_dir("/");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        // One that does not read all does not report either.
        input.map(|mut input| input.write_all(&errand)).transpose().ok();
        let mut text = String::new();
        let report = match output {
            Some(output) if is_readable(&output, LONGEST) => {
                output.take(1 << 16).read_to_string(&mut text).and_then(|_| Ok(serde_json::from_str(&text)?))
            }
            _ => Err(io::ErrorKind::TimedOut.into()),
        };
        if report.is_err() {
            child.kill().ok();
        }
        child.wait()?;
        report
    }

    fn errand(&self, order: &NotifyOrder) -> Errand {
        let program = &order.program;
        let mut environment = inherited(program, &self.service_environment);
        environment.extend(program.env.clone());
        environment.extend(order.env.clone());
        Errand {
            account: program.account.clone(),
            limits: program.limits,
            umask: program.umask.unwrap_or_else(umask_at_start),
            workdir: program.workdir.clone(),
            environment,
            receiver: order.receiver.clone(),
            message: order.message.clone(),
        }
    }
}

/// Whether there is something to read, or the end of it, before the time is over.
fn is_readable(source: &impl AsFd, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(source, PollFlags::IN)], Some(&timeout)) {
            Ok(ready) => return ready > 0,
            // A signal is no reason to wait shorter.
            Err(_) if !left.is_zero() => {}
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Account, Limits, Program};
    use cluster::Span;

    fn order(number: u64, uid: u32) -> NotifyOrder {
        let account = Some(Account { uid, gid: uid, name: format!("user{uid}"), home: "/".into() });
        let program = Program {
            command: vec!["true".into()],
            workdir: "/".into(),
            env: BTreeMap::new(),
            umask: None,
            account,
            limits: Limits::default(),
            notice: Span::ZERO,
            job_name: "a".into(),
            queue: "root".into(),
            terminal: None,
            input: None,
        };
        let receiver = Receiver::Command(vec!["true".into()]);
        NotifyOrder { number, program: Arc::new(program), receiver, message: "{}".into(), env: BTreeMap::new() }
    }

    fn number(next: &Next) -> Option<u64> {
        match next {
            Next::Deliver(waiting) => Some(waiting.order.number),
            _ => None,
        }
    }

    fn done() -> Report {
        Report { trouble: None, again: false }
    }

    #[test]
    fn whoever_floods_it_delays_only_themselves_and_what_is_too_much_is_dropped() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let taken = (0..150).filter(|&number| queue.add(order(number, 1), now)).count();
        assert_eq!(taken, MOST_WAITING);
        assert!(queue.add(order(777, 2), now), "others have room");
        let started: Vec<Next> = (0..3).map(|_| queue.next(now)).collect();
        assert_eq!(started.iter().map(number).collect::<Vec<_>>(), [Some(0), Some(777), Some(1)]);
        assert_eq!(queue.next(now), Next::Wait(None), "two of one user are under way");
        let Some(Next::Deliver(first)) = started.into_iter().next() else { panic!("it was started") };
        assert_eq!(queue.finish(*first, done(), now), Some((0, Delivery::Delivered)));
        assert_eq!(number(&queue.next(now)), Some(2));
    }

    #[test]
    fn a_place_that_falls_free_is_for_the_user_with_the_fewest_under_way() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        for user in 1..=4 {
            (0..10).for_each(|number| assert!(queue.add(order(100 * u64::from(user) + number, user), now)));
        }
        let mut started: Vec<Waiting> = Vec::new();
        for _ in 0..AT_ONCE {
            let Next::Deliver(waiting) = queue.next(now) else { panic!("it is due") };
            started.push(*waiting);
        }
        assert!(queue.add(order(777, 5), now));
        queue.finish(started.remove(0), done(), now);
        assert_eq!(number(&queue.next(now)), Some(777), "it came last, and its user has none under way");
    }

    #[test]
    fn what_may_pass_is_tried_again_after_growing_pauses_and_then_given_up() {
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        queue.add(order(5, 1), now);
        let busy = || Report { trouble: Some("busy".into()), again: true };
        for pause in PAUSES {
            let Next::Deliver(waiting) = queue.next(now) else { panic!("it is due") };
            assert_eq!(queue.finish(*waiting, busy(), now), None);
            assert_eq!(queue.next(now), Next::Wait(Some(now + pause)));
            now += pause;
        }
        let Next::Deliver(waiting) = queue.next(now) else { panic!("it is due") };
        assert_eq!(queue.finish(*waiting, busy(), now), Some((5, Delivery::Failed("busy".into()))));
        assert_eq!(queue.next(now), Next::Nothing);
    }

    #[test]
    fn a_failure_that_stays_is_told_at_once() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add(order(5, 1), now);
        let Next::Deliver(waiting) = queue.next(now) else { panic!("it is due") };
        let gone = Report { trouble: Some("gone".into()), again: false };
        assert_eq!(queue.finish(*waiting, gone, now), Some((5, Delivery::Failed("gone".into()))));
    }
}
