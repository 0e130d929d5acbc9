//! An operator's terminal, or a script or test in its place.

use std::io::{self, BufRead, IsTerminal as _, Read as _, Write};

use super::{
    Output,
    operator::Fault,
    people::{Paint, plain},
};
use crate::settings::SETTINGS;

/// Where a command prints answers and remarks, and asks for confirmation.
pub(super) struct Console<'a> {
    /// Colours for answers only.
    pub(super) paint: Paint,
    answers: &'a mut dyn Write,
    remarks: &'a mut dyn Write,
    input: &'a mut dyn BufRead,
    /// Whether a person can be asked.
    has_person: bool,
}

impl<'a> Console<'a> {
    pub(super) fn new(
        answers: &'a mut dyn Write,
        remarks: &'a mut dyn Write,
        input: &'a mut dyn BufRead,
        has_person: bool,
    ) -> Self {
        Self { paint: Paint::OFF, answers, remarks, input, has_person }
    }

    /// Runs a command at this process's own terminal.
    pub(super) async fn of_process<T>(command: impl AsyncFnOnce(&mut Console<'_>) -> T) -> T {
        let (mut answers, mut remarks) = (io::stdout(), io::stderr());
        let has_person = io::stdin().is_terminal() && io::stderr().is_terminal();
        let mut input = io::BufReader::new(io::stdin());
        let mut console = Console::new(&mut answers, &mut remarks, &mut input, has_person);
        console.paint = Output::new().paint;
        command(&mut console).await
    }

    /// Writes to standard output. A reader that has gone away wants no more text, so this is no fault.
    pub(super) fn answer(&mut self, text: &str) -> Result<(), Fault> {
        match self.answers.write_all(text.as_bytes()).and_then(|()| self.answers.flush()) {
            Err(fault) if fault.kind() != io::ErrorKind::BrokenPipe => {
                Err(Fault::new(format!("cannot write the answer: {fault}")))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Writes to standard error. If there is none, the exit code says enough.
    pub(super) fn remark(&mut self, text: &str) {
        let _ = self.remarks.write_all(text.as_bytes()).and_then(|()| self.remarks.flush());
    }

    /// Whether a person can be asked.
    pub(super) fn has_person(&self) -> bool {
        self.has_person
    }

    /// Asks for yes or no. Every answer but y or yes is no, and so is the end of the input.
    pub(super) fn is_yes(&mut self, question: &str) -> Result<bool, Fault> {
        let line = self.ask(&format!("{} [y/N] ", plain(question)))?;
        Ok(["y", "yes"].iter().any(|yes| line.eq_ignore_ascii_case(yes)))
    }

    /// Asks for a name to be typed. Returns whether it was typed.
    pub(super) fn is_typed(&mut self, name: &str) -> Result<bool, Fault> {
        Ok(self.ask(&format!("Type {} to confirm: ", plain(name)))? == name)
    }

    fn ask(&mut self, question: &str) -> Result<String, Fault> {
        self.remark(question);
        let mut line = String::new();
        match self.input.take(SETTINGS.commands.line_bytes_max).read_line(&mut line) {
            Ok(_) => Ok(line.trim().to_owned()),
            Err(fault) => Err(Fault::new(format!("cannot read the answer, nothing was changed: {fault}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(input: &str, ask: impl FnOnce(&mut Console<'_>) -> bool) -> (bool, String) {
        let (mut answers, mut remarks) = (Vec::new(), Vec::new());
        let mut input = input.as_bytes();
        let said = ask(&mut Console::new(&mut answers, &mut remarks, &mut input, true));
        assert!(answers.is_empty(), "questions are no answers");
        (said, String::from_utf8(remarks).expect("text"))
    }

    #[test]
    fn only_y_or_yes_confirms() {
        for (input, expected) in [
            ("y\n", true),
            ("YES\r\n", true),
            (" yes", true),
            ("\n", false),
            ("", false),
            ("yep\n", false),
            ("n\n", false),
        ] {
            let (said, remarks) = asked(input, |console| console.is_yes("Go on?").expect("read"));
            assert_eq!(said, expected, "{input:?}");
            assert_eq!(remarks, "Go on? [y/N] ");
        }
    }

    #[test]
    fn a_typed_name_must_match_exactly() {
        for (input, expected) in
            [("us\n", true), (" us \n", true), ("US\n", false), ("y\n", false), ("", false)]
        {
            let (said, remarks) = asked(input, |console| console.is_typed("us").expect("read"));
            assert_eq!(said, expected, "{input:?}");
            assert_eq!(remarks, "Type us to confirm: ");
        }
    }

    #[test]
    fn an_endless_input_line_is_cut() {
        let (said, _) = asked(&"y".repeat(1 << 20), |console| console.is_yes("Go on?").expect("read"));
        assert!(!said);
    }

    #[test]
    fn a_closed_pipe_is_no_error_and_a_full_disk_is() {
        struct Broken(io::ErrorKind);
        impl Write for Broken {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(self.0.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        for (kind, is_fault) in [(io::ErrorKind::BrokenPipe, false), (io::ErrorKind::StorageFull, true)] {
            let (mut answers, mut remarks) = (Broken(kind), Vec::new());
            let mut input: &[u8] = b"";
            let mut console = Console::new(&mut answers, &mut remarks, &mut input, false);
            assert_eq!(console.answer("text").is_err(), is_fault, "{kind:?}");
        }
    }
}
