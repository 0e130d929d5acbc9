//! The signature by which a hook knows its sender, of the Standard Webhooks specification
//! (<https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>).

use std::{
    fmt,
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::hmac;

use crate::settings::SETTINGS;

/// The shortest key in the specification, in bytes.
const SECRET_BYTES_MIN: usize = 24;
/// The prefix of a key in base64.
const ENCODED: &str = "whsec_";

/// Why a secret cannot be used. A fault never shows the secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretFault {
    /// The file cannot be read.
    #[error("cannot read {}: {cause}. Make it readable, or correct `secret_file` in `webhooks`", path.display())]
    File {
        /// The file, as the config names it.
        path: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
    /// The file holds no key.
    #[error("{} holds no webhook key: {what}. `echo whsec_$(openssl rand -base64 32)` makes one", path.display())]
    Key {
        /// The file, as the config names it.
        path: PathBuf,
        /// The fault of the file.
        what: String,
    },
}

/// The secret that a hook and its node share.
#[derive(Clone)]
pub(super) struct Secret(hmac::Key);

/// A secret must not be printed.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// Reads a secret from its file.
    pub(super) fn read(path: &Path) -> Result<Self, SecretFault> {
        let file = |cause| SecretFault::File { path: path.to_owned(), cause };
        let mut bytes = Vec::new();
        File::open(path)
            .map_err(file)?
            .take(SETTINGS.secrets.webhook_file_bytes_max + 1)
            .read_to_end(&mut bytes)
            .map_err(file)?;
        Self::new(&bytes).map_err(|what| SecretFault::Key { path: path.to_owned(), what })
    }

    /// The key in a text: after `whsec_` in base64, or else the text itself.
    pub(super) fn new(text: &[u8]) -> Result<Self, String> {
        if text.len() as u64 > SETTINGS.secrets.webhook_file_bytes_max {
            return Err(format!("it is longer than {} bytes", SETTINGS.secrets.webhook_file_bytes_max));
        }
        let text = text.trim_ascii();
        let decoded = match text.strip_prefix(ENCODED.as_bytes()) {
            Some(encoded) => {
                Some(STANDARD.decode(encoded).map_err(|_| format!("what follows {ENCODED} is no base64"))?)
            }
            None => None,
        };
        let key = decoded.as_deref().unwrap_or(text);
        if key.len() < SECRET_BYTES_MIN {
            return Err(format!("{} bytes, and at least {SECRET_BYTES_MIN} are needed", key.len()));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, key)))
    }

    /// The signature of a body by a holder of the secret, with a time in Unix seconds and an id.
    pub(super) fn sign(&self, id: &str, at_s: u64, body: &[u8]) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(format!("{id}.{at_s}.").as_bytes());
        context.update(body);
        format!("v1,{}", STANDARD.encode(context.sign()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_agree_with_the_reference_implementation() {
        let secret = Secret::new(b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("a secret");
        let signature =
            secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert_eq!(format!("{secret:?}"), "Secret");
    }

    #[test]
    fn a_secret_is_plain_text_or_base64_after_a_prefix() {
        let sign = |text: &str| Secret::new(text.as_bytes()).expect(text).sign("id", 1, b"{}");
        let plain = "a plain key of 24 bytes!";
        assert_eq!(plain.len(), SECRET_BYTES_MIN);
        let encoded = format!("{ENCODED}{}", STANDARD.encode(plain));
        assert_eq!(sign(plain), sign(&encoded));
        assert_eq!(sign(plain), sign(&format!("\n  {plain}\r\n")));
        assert_ne!(sign(plain), sign(&plain.to_uppercase()));
    }

    #[test]
    fn a_bad_secret_is_refused_without_quoting_it() {
        let short = format!("{ENCODED}{}", STANDARD.encode("only 23 bytes in there."));
        for (text, word) in [
            ("", "0 bytes"),
            ("   short and spaces     ", "16 bytes, and at least 24"),
            (short.as_str(), "23 bytes"),
            ("whsec_!MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "no base64"),
            (&"x".repeat(4_097), "longer than 4096"),
        ] {
            let fault = Secret::new(text.as_bytes()).expect_err(text);
            assert!(fault.contains(word), "{fault}");
        }
    }

    #[test]
    fn a_secret_file_that_cannot_be_used_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("webhook.key");
        let fault = Secret::read(&path).expect_err("no file").to_string();
        assert!(fault.contains("webhook.key") && fault.contains("`secret_file`"), "{fault}");
        std::fs::write(&path, "hunter2").expect("a file");
        let fault = Secret::read(&path).expect_err("a short key").to_string();
        assert!(fault.contains("webhook.key") && fault.contains("openssl rand"), "{fault}");
        assert!(!fault.contains("hunter2"), "{fault}");
        std::fs::write(&path, "x".repeat(SECRET_BYTES_MIN)).expect("a file");
        Secret::read(&path).expect("a key");
    }
}
