//! One worker on several drives: their queues as one.
//!
//! Each queue has its own tags, from [`depth`](Many::new) times its number on, so that a tag that came
//! back is sent to the drive that it came from: every drive keeps its depth in flight. A look goes over
//! all queues, beginning with another one each time; a drive that answers faster takes nothing from the
//! looks at the others.

use nvpoll_engine::{EngineError, IoStatus, Operation, Queue, Tag, Wait};

/// Several queues of one worker.
#[derive(Debug)]
pub struct Many<Q> {
    queues: Box<[Q]>,
    /// By tag: its queue, and the tag that it has there.
    places: Box<[(u16, Tag)]>,
    /// Tags of each.
    depth: u16,
    /// Which queue is looked at first.
    first: usize,
    /// Completions by queue.
    completed: Box<[u64]>,
}

impl<Q: Queue> Many<Q> {
    /// Of `queues`, each of `depth` tags; `None` where there are none, or more tags than 16 bits name.
    pub fn new(queues: Vec<Q>, depth: u16) -> Option<Self> {
        let count = u16::try_from(queues.len()).ok()?;
        count.checked_mul(depth).filter(|tags| *tags > 0)?;
        let of_queue = |queue| (0..depth).map(move |tag| (queue, Tag(tag)));
        Some(Self {
            places: (0..count).flat_map(of_queue).collect(),
            completed: vec![0; queues.len()].into(),
            queues: queues.into(),
            depth,
            first: 0,
        })
    }

    /// I/Os that each queue has completed.
    pub fn completed(&self) -> &[u64] {
        &self.completed
    }

    /// The queue of `tag`, and the tag that it has there.
    #[inline(always)]
    fn place(&mut self, tag: Tag) -> Option<(&mut Q, Tag)> {
        let (queue, tag) = *self.places.get(tag.index())?;
        Some((self.queues.get_mut(usize::from(queue))?, tag))
    }
}

impl<Q: Queue> Queue for Many<Q> {
    const SLEEPS: bool = Q::SLEEPS;

    /// None of them may sleep while the others have something.
    fn sleeps(&self) -> bool {
        false
    }

    #[inline(always)]
    fn push(&mut self, tag: Tag, operation: Operation) {
        if let Some((queue, tag)) = self.place(tag) {
            queue.push(tag, operation);
        }
    }

    #[inline(always)]
    fn kick(&mut self) -> Result<(), EngineError> {
        self.queues.iter_mut().try_for_each(Queue::kick)
    }

    #[inline(always)]
    fn reap(&mut self, _: Wait, sink: &mut impl FnMut(Tag, IoStatus)) -> Result<u32, EngineError> {
        let Self { queues, depth, first, completed, .. } = self;
        let mut found = 0;
        let (before, after) = queues.split_at_mut(*first);
        let order = after.iter_mut().zip(*first..).chain(before.iter_mut().zip(0..));
        for (queue, index) in order {
            let base = index as u16 * *depth;
            let own = queue.reap(Wait::No, &mut |tag, status| sink(Tag(base + tag.0), status))?;
            if let Some(completed) = completed.get_mut(index) {
                *completed += u64::from(own);
            }
            found += own;
        }
        *first += 1;
        if *first >= self.queues.len() {
            *first = 0;
        }
        Ok(found)
    }

    fn fill(&mut self, tag: Tag, data: &[u8]) {
        if let Some((queue, tag)) = self.place(tag) {
            queue.fill(tag, data);
        }
    }

    fn copy_out(&self, tag: Tag, data: &mut [u8]) {
        let place = self.places.get(tag.index());
        if let Some((queue, tag)) = place
            && let Some(queue) = self.queues.get(usize::from(*queue))
        {
            queue.copy_out(*tag, data);
        }
    }

    fn doorbell_writes(&self) -> Option<u64> {
        self.queues.iter().map(Queue::doorbell_writes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Clock;
    use crate::run::{Control, Lane, Progress, Window};
    use crate::workload::{Generator, Rw, Workload};
    use nvpoll_engine::userspace::Soft;
    use nvpoll_engine::{Engine, OpenOptions, QueueShape, Target};

    const DEPTH: u16 = 8;

    /// Drives `ios` over a queue on each of `drives` from one worker; completions by drive.
    fn drive(drives: &[&str], ios: u64) -> Vec<u64> {
        let open = |text: &&str| {
            Soft::open(&Target::Soft(text.parse().unwrap()), &OpenOptions::default()).unwrap()
        };
        let engines: Vec<Soft> = drives.iter().map(open).collect();
        let shape = QueueShape { worker: 0, depth: DEPTH.into(), io_bytes: 4096 };
        let queues = engines.iter().map(|engine| engine.queue(shape).unwrap()).collect();
        let mut many = Many::new(queues, DEPTH).unwrap();
        let workload = Workload::new(Rw::RandRead, 4096, DEPTH.into());
        let span = workload.span(16 << 20, 512).unwrap();
        let depth = drives.len() as u16 * DEPTH;
        let clock = Clock::new();
        let mut lane = Lane::new(clock.clone(), Generator::new(&workload, span, 0, 0), depth);
        let window = Window { opens: clock.now(), closes: u64::MAX, ios };
        lane.drive(&mut many, window, &Control::new(), &Progress::default()).unwrap();
        assert_eq!(lane.into_recorder().count_all(), ios);
        assert_eq!(many.completed().iter().sum::<u64>(), ios);
        assert!(many.doorbell_writes().unwrap() > 0);
        many.completed().to_vec()
    }

    #[test]
    fn equal_drives_get_equal_shares() {
        let completed = drive(&["soft:size=16M,stepped"; 24], 24 * 1000);
        assert!(completed.iter().all(|ios| ios.abs_diff(1000) <= DEPTH.into()), "{completed:?}");
    }

    #[test]
    fn a_slow_drive_takes_nothing_from_the_others_and_is_not_forgotten() {
        let mut drives = ["soft:size=16M,stepped"; 5];
        drives[2] = "soft:size=16M,latency=2ms";
        let completed = drive(&drives, 200_000);
        let (slow, fast) = (completed[2], [0, 1, 3, 4].map(|drive| completed[drive]));
        let most = fast.into_iter().max().unwrap();
        assert!(fast.iter().all(|ios| most - ios <= DEPTH.into()), "{completed:?}");
        assert!(slow < most / 4, "{completed:?}");
        assert!(slow >= DEPTH.into(), "its depth came back once at least: {completed:?}");
    }
}
