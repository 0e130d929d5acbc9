//! The keys of the demonstration.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::plan::PAIRS;

/// Something that a person, or the script, can do to the regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The link keys now apply to this link, by its place in [`PAIRS`].
    ChooseLink(usize),
    /// Cut the chosen link.
    Cut,
    /// Let the chosen link pass one way only.
    OneWay,
    /// Let everything pass everywhere.
    Mend,
    /// Cut the hot region off from the others.
    Split,
    /// The region keys now apply to the next region.
    NextRegion,
    /// Kill the chosen region's node.
    Kill,
    /// Start the killed node again.
    Restart,
    /// Move the demand to the next region.
    Heat,
    /// Start streams in the hot region, whose costs are known last.
    Streams,
    /// Order a larger budget, or a smaller one.
    Budget {
        /// Whether the budget grows.
        is_more: bool,
    },
    /// Make the delay between the regions longer or shorter.
    Delay {
        /// Whether the delay grows.
        is_longer: bool,
    },
    /// Stop the picture, or let it go on.
    Pause,
    /// Show the keys, or hide them.
    Help,
    /// End the demonstration.
    Quit,
}

/// The description of a key, or of several.
#[derive(Clone, Copy, Debug)]
pub struct Help {
    /// The keys as written on a keyboard, with spaces between them.
    pub keys: &'static str,
    /// One word, for the last rows.
    pub word: &'static str,
    /// A sentence, for the help.
    pub does: &'static str,
}

const fn help(keys: &'static str, word: &'static str, does: &'static str) -> Help {
    Help { keys, word, does }
}

/// The help for all keys.
pub const HELP: [Help; 15] = [
    help("1 2 3", "link", "choose a link"),
    help("c", "cut", "cut the chosen link"),
    help("o", "one way", "let the chosen link pass one way only"),
    help("m", "mend", "mend all links"),
    help("s", "split brain", "cut the hot region off from the others"),
    help("tab", "region", "choose the next region"),
    help("k", "kill -9", "kill the chosen region's node, as a crash would"),
    help("r", "restart", "start the nodes that were killed"),
    help("h", "heat", "move most of the demand to the next region"),
    help("t", "stream", "start streams in the hot region: their costs are known last"),
    help("+ -", "budget", "100/s more or less, with as large a burst"),
    help("d D", "delay", "a longer or a shorter way between regions"),
    help("space", "pause", "keep the picture as it is, or go on"),
    help("?", "help", "show the keys, or hide them again (esc)"),
    help("q", "quit", "end it and print the verdict"),
];

/// More lines of the help.
pub const NOTES: [(&str, &str); 3] = [
    ("", "In any time t, at most burst + rate * t is admitted: so more than the"),
    ("", "rate may pass in a second, after seconds in which less was asked for."),
    ("", "While a budget changes, the larger one counts until all nodes agree."),
];

/// The order of a key; `None` for keys without a meaning. While the help is shown, escape closes it.
pub fn order(key: KeyEvent, is_help_shown: bool) -> Option<Order> {
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
        KeyCode::Char('t') => Order::Streams,
        KeyCode::Char('+' | '=') => Order::Budget { is_more: true },
        KeyCode::Char('-') => Order::Budget { is_more: false },
        KeyCode::Char('d') => Order::Delay { is_longer: true },
        KeyCode::Char('D') => Order::Delay { is_longer: false },
        KeyCode::Char(' ') => Order::Pause,
        KeyCode::Char('?') => Order::Help,
        KeyCode::Esc if is_help_shown => Order::Help,
        KeyCode::Char('q') | KeyCode::Esc => Order::Quit,
        _ => return None,
    };
    Some(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(code: KeyCode) -> Option<Order> {
        order(KeyEvent::from(code), false)
    }

    #[test]
    fn every_key_of_the_help_does_something() {
        for Help { keys, word, .. } in HELP {
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
    fn only_existing_links_can_be_chosen() {
        assert_eq!(press(KeyCode::Char('3')), Some(Order::ChooseLink(2)));
        assert_eq!(press(KeyCode::Char('4')), None);
    }

    #[test]
    fn control_c_quits_and_c_cuts() {
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(order(control, false), Some(Order::Quit));
        assert_eq!(press(KeyCode::Char('c')), Some(Order::Cut));
    }

    #[test]
    fn escape_hides_the_help_before_it_quits() {
        let escape = KeyEvent::from(KeyCode::Esc);
        assert_eq!((order(escape, true), order(escape, false)), (Some(Order::Help), Some(Order::Quit)));
    }
}
