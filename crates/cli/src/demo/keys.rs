//! What the keys of the demonstration do.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::plan::PAIRS;

/// Something that a person, or the script, can do to the regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The keys for links are about this one, by its place in [`PAIRS`].
    ChooseLink(usize),
    /// Cut the chosen link.
    Cut,
    /// Let the chosen link pass one way only.
    OneWay,
    /// Let everything pass everywhere.
    Mend,
    /// Cut the hot region off from the others.
    Split,
    /// The keys for regions are about the next one.
    NextRegion,
    /// Kill the chosen region's node.
    Kill,
    /// Start what was killed.
    Restart,
    /// Move the demand to the next region.
    Heat,
    /// A larger budget, or a smaller one.
    Budget {
        /// Which of the two.
        is_more: bool,
    },
    /// A longer way between the regions, or a shorter one.
    Delay {
        /// Which of the two.
        is_longer: bool,
    },
    /// Keep the picture as it is, or go on.
    Pause,
    /// End it.
    Quit,
}

/// What to show of the keys.
pub const HELP: [(&str, &str); 13] = [
    ("1 2 3", "link"),
    ("c", "cut"),
    ("o", "one way"),
    ("m", "mend"),
    ("s", "split brain"),
    ("tab", "region"),
    ("k", "kill -9"),
    ("r", "restart"),
    ("h", "move heat"),
    ("+ -", "budget"),
    ("d D", "delay"),
    ("space", "pause"),
    ("q", "quit"),
];

/// What a key orders; nothing for keys that mean nothing.
pub fn order(key: KeyEvent) -> Option<Order> {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return (key.code == KeyCode::Char('c')).then_some(Order::Quit);
    }
    let order = match key.code {
        KeyCode::Char(digit @ '1'..='9') => {
            let link = digit as usize - '1' as usize;
            return (link < PAIRS.len()).then_some(Order::ChooseLink(link));
        }
        KeyCode::Char('c') => Order::Cut,
        KeyCode::Char('o') => Order::OneWay,
        KeyCode::Char('m') => Order::Mend,
        KeyCode::Char('s') => Order::Split,
        KeyCode::Tab | KeyCode::Right => Order::NextRegion,
        KeyCode::Char('k') => Order::Kill,
        KeyCode::Char('r') => Order::Restart,
        KeyCode::Char('h') => Order::Heat,
        KeyCode::Char('+' | '=') => Order::Budget { is_more: true },
        KeyCode::Char('-') => Order::Budget { is_more: false },
        KeyCode::Char('d') => Order::Delay { is_longer: true },
        KeyCode::Char('D') => Order::Delay { is_longer: false },
        KeyCode::Char(' ') => Order::Pause,
        KeyCode::Char('q') | KeyCode::Esc => Order::Quit,
        _ => return None,
    };
    Some(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(code: KeyCode) -> Option<Order> {
        order(KeyEvent::from(code))
    }

    #[test]
    fn every_key_of_the_help_does_something() {
        for (keys, word) in HELP {
            for key in keys.split(' ') {
                let code = match key {
                    "tab" => KeyCode::Tab,
                    "space" => KeyCode::Char(' '),
                    key => KeyCode::Char(key.chars().next().expect("a key")),
                };
                assert!(press(code).is_some(), "{key} {word}");
            }
        }
    }

    #[test]
    fn only_links_that_there_are_can_be_chosen() {
        assert_eq!(press(KeyCode::Char('3')), Some(Order::ChooseLink(2)));
        assert_eq!(press(KeyCode::Char('4')), None);
    }

    #[test]
    fn control_c_quits_and_c_cuts() {
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(order(control), Some(Order::Quit));
        assert_eq!(press(KeyCode::Char('c')), Some(Order::Cut));
    }
}
