//! The result of a look at the raw clocks, for readers that read only the counter.
//!
//! A *latch* has two copies. The writer changes the copy that no reader is sent to, and then sends readers
//! there. So a writer that is preempted keeps no reader waiting. A reader that finds that it was sent
//! elsewhere meanwhile reads again.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// How readings of the counter become readings of the clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    /// A reading of the counter.
    pub(super) from: u64,
    /// The steady clock at that instant.
    pub(super) steady_ns: u64,
    /// Nanoseconds that a count takes, in parts of 2^32.
    pub(super) scale: u64,
    /// The line is valid for so many counts.
    pub(super) counts: u64,
    /// The wall minus the steady clock.
    pub(super) offset_ns: i64,
    /// How often the wall was set back.
    pub(super) generation: u64,
}

impl Line {
    /// The steady clock at a reading of the counter; `None` if the raw clocks must be read.
    #[inline]
    pub(super) fn at(&self, counter: u64) -> Option<u64> {
        let counts = counter.wrapping_sub(self.from);
        // Less than a second's counts: the product fits.
        (counts < self.counts)
            .then(|| self.steady_ns + ((u128::from(counts) * u128::from(self.scale)) >> 32) as u64)
    }
}

#[derive(Debug)]
pub(super) struct Latch {
    /// The lowest bit says which copy to read.
    writes: AtomicU64,
    copies: [[AtomicU64; 6]; 2],
}

impl Latch {
    pub(super) fn new(line: Line) -> Self {
        let latch = Self { writes: AtomicU64::new(0), copies: Default::default() };
        latch.write(&line);
        latch
    }

    #[inline]
    pub(super) fn read(&self) -> Line {
        loop {
            let writes = self.writes.load(Ordering::Acquire);
            let [from, steady_ns, scale, counts, offset_ns, generation] =
                self.copies[(writes & 1) as usize].each_ref().map(|word| word.load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if self.writes.load(Ordering::Relaxed) == writes {
                return Line {
                    from,
                    steady_ns,
                    scale,
                    counts,
                    offset_ns: offset_ns.cast_signed(),
                    generation,
                };
            }
        }
    }

    /// Only one thread may call this at a time.
    pub(super) fn write(&self, line: &Line) {
        let next = self.writes.load(Ordering::Relaxed).wrapping_add(1);
        let Line { from, steady_ns, scale, counts, offset_ns, generation } = *line;
        let words = [from, steady_ns, scale, counts, offset_ns.cast_unsigned(), generation];
        // A reader that still reads the copy being written must see that `writes` has changed.
        fence(Ordering::Release);
        for (word, value) in self.copies[(next & 1) as usize].iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        self.writes.store(next, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn a_reader_never_sees_a_half_written_line() {
        let line =
            |n: u64| Line { from: n, steady_ns: n, scale: n, counts: n, offset_ns: n as i64, generation: n };
        let (latch, ends) = (Latch::new(line(0)), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (1..200_000).for_each(|n| latch.write(&line(n)));
                ends.store(true, Ordering::Release);
            });
            let mut last = 0;
            while !ends.load(Ordering::Acquire) {
                let read = latch.read();
                assert_eq!(read, line(read.from));
                assert!(read.from >= last, "an older one");
                last = read.from;
            }
        });
    }
}
