//! How workers exchange gradients: rank 0 sends the weights to all, each answers with its gradient, and rank 0 takes the
//! mean. A worker that dies is noticed by the end of its connection, and a training without it does not go on.

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::surroundings::Tuning;

/// How long workers wait for each other before they give up.
const PATIENCE: Duration = Duration::from_secs(60);
const TRY_AGAIN: Duration = Duration::from_millis(10);

/// The other workers, as rank 0 sees them.
#[derive(Debug, Default)]
pub(super) struct Peers(Vec<Line>);

/// Rank 0, as another worker sees it.
#[derive(Debug)]
pub(super) struct Leader(Line);

/// What rank 0 wants next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    Step { number: u64, tuning: Tuning },
    Finished,
    Leave,
}

/// What one worker has to say about a step.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Contribution {
    /// The mean over its passes.
    pub(super) gradient: Vec<f32>,
    pub(super) loss: f64,
    /// The sum over its passes of the squared norms of their gradients.
    pub(super) squares: f64,
    /// The mean time of a pass.
    pub(super) pass_seconds: f64,
}

impl Peers {
    /// Waits for all others; nothing if told to stop meanwhile.
    pub(super) fn gather(
        master: &str,
        workers: u32,
        weights: usize,
        stop: &AtomicBool,
    ) -> anyhow::Result<Option<Peers>> {
        let mut peers: Vec<(u32, Line)> = Vec::new();
        if workers == 1 {
            return Ok(Some(Peers::default()));
        }
        let listener = TcpListener::bind(master).with_context(|| format!("cannot listen on {master}"))?;
        listener.set_nonblocking(true).context("cannot wait for the other workers")?;
        let until = Instant::now() + PATIENCE;
        while peers.len() + 1 < workers as usize {
            match listener.accept() {
                Ok((stream, _)) => {
                    let mut line = Line::new(stream)?;
                    let (rank, theirs) = (line.number::<4>()? as u32, line.number::<8>()?);
                    ensure!(theirs == weights as u64, "worker {rank} has {theirs} weights, not {weights}");
                    let known = peers.iter().any(|(known, _)| *known == rank);
                    ensure!(rank > 0 && rank < workers && !known, "cannot take a worker that says its rank is {rank}");
                    peers.push((rank, line));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(TRY_AGAIN),
                Err(error) => return Err(error).context("cannot wait for the other workers"),
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            ensure!(Instant::now() < until, "only {} of {workers} workers came", peers.len() + 1);
        }
        // Sums of floats depend on their order, and trainings should not.
        peers.sort_by_key(|(rank, _)| *rank);
        Ok(Some(Peers(peers.into_iter().map(|(_, line)| line).collect())))
    }

    pub(super) fn ask(&mut self, number: u64, tuning: Tuning, weights: &[f32]) -> anyhow::Result<()> {
        let ask = |line: &mut Line| {
            line.write(&[STEP])?;
            line.write(&number.to_le_bytes())?;
            line.write(&tuning.local.to_le_bytes())?;
            line.write(&tuning.accumulations.to_le_bytes())?;
            line.send(weights)
        };
        self.0.iter_mut().try_for_each(ask).context("a worker is gone")
    }

    pub(super) fn hear(&mut self, weights: usize) -> anyhow::Result<Vec<Contribution>> {
        let hear = |line: &mut Line| {
            let [loss, squares, pass_seconds] = [line.float()?, line.float()?, line.float()?];
            Ok(Contribution { gradient: line.floats(weights)?, loss, squares, pass_seconds })
        };
        self.0.iter_mut().map(hear).collect::<io::Result<_>>().context("a worker is gone")
    }

    /// The last word. Whoever does not hear it finds the line closed.
    pub(super) fn dismiss(mut self, word: u8) {
        for line in &mut self.0 {
            line.write(&[word]).and_then(|()| line.to.flush()).ok();
        }
    }
}

impl Leader {
    /// Nothing if told to stop before rank 0 was there.
    pub(super) fn find(master: &str, rank: u32, weights: usize, stop: &AtomicBool) -> anyhow::Result<Option<Leader>> {
        let until = Instant::now() + PATIENCE;
        let stream = loop {
            match TcpStream::connect(master) {
                Ok(stream) => break stream,
                Err(_) if stop.load(Ordering::Relaxed) => return Ok(None),
                Err(_) if Instant::now() < until => sleep(TRY_AGAIN),
                Err(error) => return Err(error).with_context(|| format!("cannot reach the first worker at {master}")),
            }
        };
        let mut line = Line::new(stream)?;
        let greeted = line.write(&rank.to_le_bytes()).and_then(|()| line.write(&(weights as u64).to_le_bytes()));
        greeted.and_then(|()| line.to.flush()).context("the first worker is gone")?;
        Ok(Some(Leader(line)))
    }

    /// Waits for the next word; the weights of a step are put in place.
    pub(super) fn hear(&mut self, weights: &mut Vec<f32>) -> anyhow::Result<Word> {
        let gone = "the first worker is gone";
        match self.0.number::<1>().context(gone)? as u8 {
            FINISHED => Ok(Word::Finished),
            LEAVE => Ok(Word::Leave),
            STEP => {
                let number = self.0.number::<8>().context(gone)?;
                let local = self.0.number::<4>().context(gone)? as u32;
                let accumulations = self.0.number::<4>().context(gone)? as u32;
                *weights = self.0.floats(weights.len()).context(gone)?;
                Ok(Word::Step { number, tuning: Tuning { local, accumulations } })
            }
            other => bail!("cannot understand the first worker: it says {other}"),
        }
    }

    pub(super) fn answer(&mut self, contribution: &Contribution) -> anyhow::Result<()> {
        let Contribution { gradient, loss, squares, pass_seconds } = contribution;
        let figures = [loss, squares, pass_seconds];
        let answered = figures.into_iter().try_for_each(|figure| self.0.write(&figure.to_le_bytes()));
        answered.and_then(|()| self.0.send(gradient)).context("the first worker is gone")
    }
}

const STEP: u8 = 0;
pub(super) const FINISHED: u8 = 1;
pub(super) const LEAVE: u8 = 2;

/// A connection on which numbers travel, lowest byte first.
#[derive(Debug)]
struct Line {
    from: BufReader<TcpStream>,
    to: BufWriter<TcpStream>,
}

impl Line {
    fn new(stream: TcpStream) -> anyhow::Result<Line> {
        let prepared = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_nodelay(true))
            .and_then(|()| stream.set_read_timeout(Some(PATIENCE)))
            .and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
        let other = prepared.and_then(|()| stream.try_clone()).context("cannot use a connection")?;
        Ok(Line { from: BufReader::with_capacity(1 << 16, stream), to: BufWriter::with_capacity(1 << 16, other) })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.to.write_all(bytes)
    }

    fn send(&mut self, values: &[f32]) -> io::Result<()> {
        values.iter().try_for_each(|value| self.to.write_all(&value.to_le_bytes()))?;
        self.to.flush()
    }

    fn number<const BYTES: usize>(&mut self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.from.read_exact(&mut bytes[..BYTES])?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn float(&mut self) -> io::Result<f64> {
        self.number::<8>().map(f64::from_bits)
    }

    fn floats(&mut self, count: usize) -> io::Result<Vec<f32>> {
        let mut bytes = vec![0; 4 * count];
        self.from.read_exact(&mut bytes)?;
        Ok(bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().expect("they are four"))).collect())
    }
}
