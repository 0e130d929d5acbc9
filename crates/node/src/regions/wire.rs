//! The messages between regions: frames of entries, in postcard.
//!
//! Nothing here creates a right. Every entry is a question, or a fact about its maker's own rows: a lower
//! bound, whenever it arrives. Frames may be lost, repeated and reordered. A frame is bounded, and its
//! collections are read one entry at a time, so that a false length allocates nothing.

use acequia_limits::{Algorithm, CellTag, LimitId};
use acequia_rights::{
    Incarnation,
    digest::{Buckets, Digest},
    loan::{Grant, Return},
    session::Renew,
    versions::{Ack, Version, VersionId},
};
use serde::{Deserialize, Serialize};

use super::seal::Seal;

/// The first byte of a frame. A node refuses frames of any other version.
pub const VERSION: u8 = 5;
/// The most bytes in a frame, a catalogue's version included.
pub const FRAME_BYTES_MAX: usize = 4 << 20;
/// The most entries in a frame.
pub const ENTRIES_MAX: usize = 8_192;
/// Bytes after which a frame is full, and the next one begins.
pub(crate) const FRAME_BYTES_FULL: usize = 48 << 10;

/// Facts that every frame states about its sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameHeader {
    /// The sender's incarnation.
    pub incarnation: Incarnation,
    /// The sender's process number: it counts up with every start.
    pub process_number: u32,
    /// The frame's number, from 1: among the frames to this peer since the sender's start.
    pub number: u64,
    /// The peer's frames that arrived.
    pub received: ReceivedFrames,
    /// The sender's newest heartbeat.
    pub heartbeat: u64,
    /// The reading of the sender's system wall clock, in nanoseconds.
    pub wall_ns: u64,
    /// How far the wall that the sender goes by is ahead of that reading, in nanoseconds.
    pub corrected_ns: i64,
    /// Whether somebody has agreed with that wall since the sender's start.
    pub is_believed: bool,
    /// The highest loan number that the sender ever accepted from the peer.
    pub loan_max: u64,
    /// The newest version of the catalogue that the sender has on its disk.
    pub version_id: VersionId,
}

/// The frames of one process that arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceivedFrames {
    /// The number of the peer's incarnation.
    pub incarnation: u32,
    /// The peer's process number.
    pub process_number: u32,
    /// The highest frame number.
    pub highest: u64,
    /// The 64 frames before it: bit `i` is `highest − 1 − i`.
    pub mask: u64,
}

impl ReceivedFrames {
    /// Notes a frame. Returns whether it is new.
    pub(crate) fn note(&mut self, number: u64) -> bool {
        if number > self.highest {
            let by = number - self.highest;
            self.mask = if by > 64 {
                0
            } else {
                (self.mask << 1 | u64::from(self.highest > 0)).checked_shl(by as u32 - 1).unwrap_or(0)
            };
            self.highest = number;
            return true;
        }
        match self.highest - number {
            0 => false,
            back @ 1..=64 => {
                let bit = 1 << (back - 1);
                let new = self.mask & bit == 0;
                self.mask |= bit;
                new
            }
            // Too old to tell: its facts are known, or will be sent again.
            _ => false,
        }
    }

    /// Whether a frame is known to have arrived.
    pub(crate) fn has(&self, number: u64) -> bool {
        match self.highest.checked_sub(number) {
            None => false,
            Some(0) => true,
            Some(back @ 1..=64) => self.mask & (1 << (back - 1)) != 0,
            Some(_) => false,
        }
    }
}

/// A number for a cell, given by one end of a connection. The lowest bit says whether the receiver's end gave
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ShortId(pub u32);

/// One fact, or one question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FrameEntry {
    /// From now on the sender calls this cell by this number.
    Introduce {
        /// The number, its lowest bit 0.
        id: ShortId,
        /// The cell's limit.
        limit: LimitId,
        /// The cell.
        tag: CellTag,
        /// The cell's variant: the limit's own, 0, or an override's. `None` if there is only one, or the
        /// variant is unknown.
        which: Option<u16>,
    },
    /// The receiver used a number that the sender does not know: introduce it again.
    Unknown {
        /// The number, as the sender of this entry got it.
        id: ShortId,
    },
    /// How an active cell is doing in the sender's region. This steers who lends, and nothing else.
    Advertisement {
        /// The cell.
        id: ShortId,
        /// Units asked for a second, in thousandths.
        demand: Rough,
        /// How much the region may use: parts of the rate, or units if there is no rate.
        holds: Rough,
        /// Units that could be charged now.
        left: Rough,
        /// The standing part that the sender acts for, counted as `holds`, if it is not the sender's own. A
        /// cell's owner acts for its region, and its mates act for less than they have.
        stands: Option<Rough>,
        /// Units that were spent before they were asked for, and that the region does not have: the others keep
        /// as many back.
        owed: Rough,
    },
    /// A request needs more units at once than the sender's region can hold.
    Short {
        /// The cell.
        id: ShortId,
        /// Units that the region must be able to hold.
        units: u64,
    },
    /// A loan.
    Grant {
        /// The cell.
        id: ShortId,
        /// The loan: the same bytes however often it is sent.
        grant: Grant,
    },
    /// The end of a loan, before its time.
    Return {
        /// The cell.
        id: ShortId,
        /// Which loan, and what comes back.
        back: Return,
    },
    /// The giver needs a loan back: it is not renewed any more.
    Recall {
        /// The cell.
        id: ShortId,
        /// The loan.
        number: u64,
    },
    /// The sender does not hold a loan: the loan came too late, there were too many, or it is over.
    Refused {
        /// The cell.
        id: ShortId,
        /// The loan.
        number: u64,
    },
    /// All loans to the receiver are renewed, except for some.
    Renew(Renew),
    /// The sender wants rights in a window.
    Ask {
        /// The cell.
        id: ShortId,
        /// The window's end: wall clock, nanoseconds.
        end_ns: u64,
        /// Units.
        units: u64,
    },
    /// The total that the sender gave the receiver in a window.
    Give {
        /// The cell.
        id: ShortId,
        /// The window's end: wall clock, nanoseconds.
        end_ns: u64,
        /// Units since the window began.
        cumulative: u64,
    },
    /// The total that the sender received from the receiver in a window.
    Got {
        /// The cell.
        id: ShortId,
        /// The window's end: wall clock, nanoseconds.
        end_ns: u64,
        /// Units since the window began.
        cumulative: u64,
    },
    /// A version of the catalogue, with its authority's seal.
    Version(Box<Version>, Option<Box<Seal>>),
    /// The version that an incarnation has acknowledged.
    Acked {
        /// The incarnation.
        incarnation: Incarnation,
        /// Its acknowledgement.
        ack: Ack,
        /// Its seal.
        seal: Option<Box<Seal>>,
    },
    /// The totals that an incarnation has charged under a limit: a counter's row.
    Usage {
        /// The limit.
        limit: LimitId,
        /// The incarnation of the row.
        incarnation: Incarnation,
        /// Units charged, ever.
        spent: u64,
        /// Units given back, ever.
        refunded: u64,
    },
    /// A digest, by buckets, of what the sender ever told the receiver about open windows, and of what the
    /// sender charged.
    Digest(Box<Digest>),
    /// The buckets of the receiver's digest in which the sender knows something else: the receiver shall send
    /// them again.
    Differs(Buckets),
    /// Somebody told the sender to settle a charge that the receiver made. This is done once, however often
    /// it comes.
    Settle {
        /// The charge's name.
        id: u128,
        /// Its real cost; `None` to give everything back.
        cost: Option<u64>,
    },
    /// A request waits at the sender, a mate. The receiver, the cell's owner or another mate, shall charge
    /// its own cell.
    Forward {
        /// The cell's limit.
        limit: LimitId,
        /// The cell.
        tag: CellTag,
        /// The limit as the sender knows it: a charge under another variant would pass nobody.
        whole: Whole,
        /// The forward's number, among all of the sender's process.
        number: u64,
        /// Units: all of them, or none.
        units: u64,
        /// A charge later than this, in microseconds, is of no use.
        within_us: u32,
        /// The request was forwarded before, and so is no additional demand.
        is_again: bool,
    },
    /// The answer to a forward.
    ForwardReply {
        /// The forward's number.
        number: u64,
        /// Units that were charged; 0 if there were none in time. `None` if the sender cannot get any: the
        /// receiver shall do without the sender for a while.
        units: Option<u64>,
    },
    /// Only asks the receiver to answer, so that the sender learns how far away the receiver is, and what its
    /// clock reads.
    Ping,
}

impl FrameEntry {
    /// Whether the entry changes no cell.
    pub(crate) const fn is_of_no_cell(&self) -> bool {
        matches!(
            self,
            Self::Introduce { .. }
                | Self::Unknown { .. }
                | Self::Renew(_)
                | Self::Version(..)
                | Self::Acked { .. }
                | Self::Usage { .. }
                | Self::Digest(_)
                | Self::Differs(_)
                | Self::Ping
        )
    }

    /// The cell that the entry is about, if any; `None` for an introduction.
    pub(crate) const fn cell(&self) -> Option<ShortId> {
        match *self {
            Self::Advertisement { id, .. }
            | Self::Short { id, .. }
            | Self::Grant { id, .. }
            | Self::Return { id, .. }
            | Self::Recall { id, .. }
            | Self::Refused { id, .. }
            | Self::Ask { id, .. }
            | Self::Give { id, .. }
            | Self::Got { id, .. } => Some(id),
            Self::Introduce { .. }
            | Self::Unknown { .. }
            | Self::Renew(_)
            | Self::Version(..)
            | Self::Acked { .. }
            | Self::Usage { .. }
            | Self::Digest(_)
            | Self::Differs(_)
            | Self::Settle { .. }
            | Self::Forward { .. }
            | Self::ForwardReply { .. }
            | Self::Ping => None,
        }
    }
}

/// The budget and rate of one variant of a limit, in all regions together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whole {
    /// Its units.
    pub units: u64,
    /// A bucket's rate: this many units in this many nanoseconds, in lowest terms. `None` if units do not
    /// come back at a rate.
    pub rate: Option<(u64, u64)>,
}

impl Whole {
    pub(crate) fn of(global: &Algorithm) -> Self {
        let rate = match global {
            Algorithm::TokenBucket(meter) | Algorithm::LeakyBucket(meter) => Some(meter.terms()),
            // The length of their windows is part of the limit's identity.
            _ => None,
        };
        Self { units: global.budget(), rate }
    }
}

/// A number to about a thousandth, in 16 bits: below 1024 it is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rough(pub u16);

impl Rough {
    /// Rounded down.
    pub const fn new(value: u64) -> Self {
        let bits = 64 - value.leading_zeros();
        if bits <= 10 {
            return Self(value as u16);
        }
        let exponent = bits - 10;
        // The leading bit is implied: nine follow.
        let mantissa = (value >> exponent) as u16 & 0x1FF;
        Self(((exponent as u16) << 9 | mantissa) + 512)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        if self.0 < 1_024 {
            return self.0 as u64;
        }
        let code = self.0 - 512;
        let exponent = code >> 9;
        let mantissa = (code & 0x1FF) as u64 | 0x200;
        // Codes that `new` never makes mean more than any number.
        if exponent > 54 { u64::MAX } else { mantissa << exponent }
    }
}

/// A frame, as it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The sender's header.
    pub header: FrameHeader,
    /// In the order they were written.
    pub entries: Vec<FrameEntry>,
}

/// Why a frame was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Garbled {
    /// Longer than [`FRAME_BYTES_MAX`].
    #[error("a frame of more than {FRAME_BYTES_MAX} bytes")]
    TooLong,
    /// Another version of the protocol.
    #[error("a frame of version {0}, not {VERSION}: upgrade the older node")]
    Version(u8),
    /// No postcard, or of another shape, or with bytes left over.
    #[error("a frame that cannot be read")]
    Shape,
    /// More than [`ENTRIES_MAX`].
    #[error("a frame of more than {ENTRIES_MAX} entries")]
    TooMany,
}

/// Writes frames: the header first, then entries until it is full.
#[derive(Debug)]
pub(crate) struct FrameWriter {
    bytes: Vec<u8>,
    entries: usize,
}

impl FrameWriter {
    pub(crate) fn new(header: &FrameHeader) -> Self {
        let mut writer = Self { bytes: vec![VERSION], entries: 0 };
        writer.append(header);
        writer
    }

    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() >= FRAME_BYTES_FULL || self.entries >= ENTRIES_MAX - 1
    }

    pub(crate) fn push(&mut self, entry: &FrameEntry) {
        self.entries += 1;
        self.append(entry);
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }

    fn append(&mut self, value: &impl Serialize) {
        let bytes = std::mem::take(&mut self.bytes);
        // Writing to a growing vector fails only for types that postcard has no way to write.
        self.bytes = postcard::to_extend(value, bytes).unwrap_or_default();
    }
}

/// Reads a frame.
///
/// # Errors
/// The fault of the frame; then nothing in it counts.
pub fn read(bytes: &[u8]) -> Result<Frame, Garbled> {
    if bytes.len() > FRAME_BYTES_MAX {
        return Err(Garbled::TooLong);
    }
    let (version, rest) = bytes.split_first().ok_or(Garbled::Shape)?;
    if *version != VERSION {
        return Err(Garbled::Version(*version));
    }
    let (header, mut rest) = postcard::take_from_bytes::<FrameHeader>(rest).map_err(|_| Garbled::Shape)?;
    let mut entries = Vec::new();
    while !rest.is_empty() {
        if entries.len() == ENTRIES_MAX {
            return Err(Garbled::TooMany);
        }
        let (entry, after) = postcard::take_from_bytes::<FrameEntry>(rest).map_err(|_| Garbled::Shape)?;
        entries.push(entry);
        rest = after;
    }
    Ok(Frame { header, entries })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rough_numbers_are_close_and_never_above(value: u64) {
            let read = Rough::new(value).get();
            prop_assert!(read <= value);
            prop_assert!(value - read <= value >> 9);
        }

        #[test]
        fn rough_numbers_keep_their_order(a: u64, b: u64) {
            prop_assert!(Rough::new(a.min(b)) <= Rough::new(a.max(b)));
        }

        #[test]
        fn any_code_of_a_rough_number_can_be_read(code: u16) {
            Rough(code).get();
        }

        #[test]
        fn garbage_is_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = read(&bytes);
        }

        #[test]
        fn received_frames_are_remembered_within_their_window(numbers in prop::collection::vec(1..200u64, 1..300)) {
            let mut received = ReceivedFrames::default();
            let mut all = std::collections::BTreeSet::new();
            for number in numbers {
                let old = received.highest.saturating_sub(64) > number;
                let new = received.note(number);
                prop_assert_eq!(new, all.insert(number) && !old, "{}", number);
                for n in 1..=received.highest {
                    let near = received.highest - n <= 64;
                    prop_assert!(!received.has(n) || all.contains(&n));
                    prop_assert!(!near || !all.contains(&n) || received.has(n) || old);
                }
            }
        }
    }

    #[test]
    fn small_rough_numbers_are_exact() {
        for value in 0..1_024 {
            assert_eq!(Rough::new(value).get(), value);
        }
    }
}
