//! The terminal for commands that draw. It is taken over, and always given back.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyEvent, KeyEventKind},
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};

use crate::{
    settings::SETTINGS,
    view::{draw, picture::Picture},
};

/// A terminal in full-screen mode. Dropping it, or a panic, restores the terminal.
#[derive(Debug)]
pub(crate) struct Screen {
    terminal: DefaultTerminal,
    is_plain: bool,
}

impl Screen {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// Standard output is not a terminal that can be drawn on.
    pub(crate) fn open() -> io::Result<Self> {
        // Also restores the terminal when this process panics.
        let terminal = ratatui::try_init()?;
        let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Ok(Self { terminal, is_plain })
    }

    /// Shows a picture.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(crate) fn show(&mut self, picture: &Picture) -> io::Result<()> {
        let is_plain = self.is_plain;
        self.terminal.draw(|frame| draw(picture, is_plain, frame.area(), frame.buffer_mut()))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Reads the keyboard on its own thread, since there is no other way to wait for a terminal.
#[derive(Debug)]
pub(crate) struct Keyboard {
    keys: mpsc::Receiver<KeyEvent>,
    is_done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Keyboard {
    /// Begins to read.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn open() -> io::Result<Self> {
        let (sender, keys) = mpsc::channel(SETTINGS.screen.keys_max);
        let is_done = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&is_done);
        let thread = std::thread::Builder::new()
            .name("keyboard".to_owned())
            .spawn(move || while !done.load(Ordering::Relaxed) && read(&sender).is_ok() {})?;
        Ok(Self { keys, is_done, thread: Some(thread) })
    }

    /// The next key; `None` when the keyboard is gone.
    pub(crate) async fn next(&mut self) -> Option<KeyEvent> {
        self.keys.recv().await
    }
}

/// Passes on one key, if one comes soon.
fn read(sender: &mpsc::Sender<KeyEvent>) -> io::Result<()> {
    if event::poll(SETTINGS.screen.key_wait)?
        && let Event::Key(key) = event::read()?
        && key.kind != KeyEventKind::Release
    {
        // Keys that come faster than they are taken are lost.
        let _ = sender.try_send(key);
    }
    Ok(())
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread only reads keys: a panic there leaves nothing behind.
            let _ = thread.join();
        }
    }
}

/// The signals that ask a process to end. After `open` they no longer end it by themselves.
#[derive(Debug)]
pub(crate) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Interrupts {
    /// Takes the signals over.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hang_up.recv() => {}
        }
    }
}
