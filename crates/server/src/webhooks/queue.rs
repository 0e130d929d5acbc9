//! Events on their way to one hook, bounded in number and bytes. If there is no room, the oldest leave.

use std::{collections::BTreeMap, time::Instant};

use bytes::Bytes;

use crate::settings::SETTINGS;

/// An event on its way to a hook.
#[derive(Clone, Debug)]
pub(super) struct Letter {
    /// The number of the letter, in the order of the offers.
    pub(super) number: u64,
    /// The event's id.
    pub(super) id: String,
    /// The event as JSON. All hooks share these bytes.
    pub(super) body: Bytes,
    pub(super) offered: Instant,
    /// When the letter is to be sent.
    pub(super) due: Instant,
    /// How often the letter was sent.
    pub(super) tries: u32,
    /// Whether the node stops, and this try is the last.
    pub(super) is_last: bool,
}

/// The letters by their numbers.
#[derive(Debug, Default)]
pub(super) struct Queue {
    letters: BTreeMap<u64, Letter>,
    bytes: usize,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.letters.len()
    }

    /// Adds a letter at its place. Returns the letters that had to leave, which are the oldest and may
    /// include this one.
    pub(super) fn put(&mut self, letter: Letter) -> Vec<Letter> {
        if letter.body.len() > SETTINGS.webhooks.letters_bytes_max {
            return vec![letter];
        }
        self.bytes += letter.body.len();
        self.letters.insert(letter.number, letter);
        let mut left = Vec::new();
        while self.letters.len() > SETTINGS.webhooks.letters_max
            || self.bytes > SETTINGS.webhooks.letters_bytes_max
        {
            let Some((_, oldest)) = self.letters.pop_first() else { break };
            self.bytes -= oldest.body.len();
            left.push(oldest);
        }
        left
    }

    /// When the next letter is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.letters.values().map(|letter| letter.due).min()
    }

    /// Takes the letter that is due first; among several, the oldest.
    pub(super) fn take(&mut self) -> Option<Letter> {
        let (_, number) = self.letters.values().map(|letter| (letter.due, letter.number)).min()?;
        let letter = self.letters.remove(&number)?;
        self.bytes -= letter.body.len();
        Some(letter)
    }

    /// Removes all letters, and returns their number.
    pub(super) fn clear(&mut self) -> usize {
        self.bytes = 0;
        std::mem::take(&mut self.letters).len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn letter(number: u64, due: Instant, bytes: usize) -> Letter {
        let body = Bytes::from(vec![b'x'; bytes]);
        Letter { number, id: number.to_string(), body, offered: due, due, tries: 0, is_last: false }
    }

    /// How many letters leave when another one comes.
    fn put(queue: &mut Queue, letter: Letter) -> usize {
        queue.put(letter).len()
    }

    fn numbers(queue: &mut Queue) -> Vec<u64> {
        std::iter::from_fn(|| queue.take()).map(|letter| letter.number).collect()
    }

    #[test]
    fn the_oldest_events_make_room_in_a_full_queue() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        for number in 0..SETTINGS.webhooks.letters_max as u64 {
            assert_eq!(put(&mut queue, letter(number, now, 10)), 0);
        }
        assert_eq!(put(&mut queue, letter(5_000, now, 10)), 1);
        assert_eq!(
            put(&mut queue, letter(0, now, 10)),
            1,
            "an old one that comes back has no place any more"
        );
        assert_eq!(queue.len(), SETTINGS.webhooks.letters_max);
        let left = numbers(&mut queue);
        assert_eq!(
            (left[0], left[SETTINGS.webhooks.letters_max - 1], left.len()),
            (1, 5_000, SETTINGS.webhooks.letters_max)
        );
        assert_eq!((queue.len(), queue.bytes), (0, 0));
    }

    #[test]
    fn long_events_make_room_within_the_byte_bound() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        for number in 0..4 {
            assert_eq!(put(&mut queue, letter(number, now, SETTINGS.webhooks.letters_bytes_max / 4)), 0);
        }
        assert_eq!(put(&mut queue, letter(4, now, SETTINGS.webhooks.letters_bytes_max / 2)), 2);
        assert_eq!(
            put(&mut queue, letter(5, now, SETTINGS.webhooks.letters_bytes_max + 1)),
            1,
            "what never fits takes nobody's place"
        );
        assert_eq!(numbers(&mut queue), [2, 3, 4]);
        assert_eq!(queue.bytes, 0);
    }

    #[test]
    fn the_event_that_is_due_first_is_taken_first() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let later = now + Duration::from_secs(1);
        for (number, due) in [(0, later), (1, now), (2, later), (3, now)] {
            queue.put(letter(number, due, 1));
        }
        assert_eq!(queue.due(), Some(now));
        assert_eq!(numbers(&mut queue), [1, 3, 0, 2]);
        assert_eq!(queue.due(), None);
        queue.put(letter(4, now, 1));
        assert_eq!((queue.clear(), queue.len(), queue.bytes), (1, 0, 0));
    }
}
