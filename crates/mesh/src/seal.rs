//! Signs content with a node's certificate key, so that others can pass the content on.
//!
//! A connection proves only who sends. A node that passes on another node's content could have made the
//! content up. So the author signs content that others pass on, and adds its certificates. The receiver
//! checks both against the roots of its connections, at the time of receipt. A chain that is valid then is
//! enough, and content accepted then stays accepted.
//!
//! Every key type that rustls accepts for TLS can sign: Ed25519, ECDSA and RSA.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
};

use ring::digest;
use rustls::{
    SignatureScheme,
    pki_types::{CertificateDer, UnixTime},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::SigningKey,
};

use crate::{
    Credentials, Identity,
    certs::{Facts, facts, now_unix_s, provider, roots},
    settings::SETTINGS,
};

/// The schemes in the order of preference: each is a scheme of TLS 1.3 (RFC 8446 section 4.2.3).
const SCHEMES: [SignatureScheme; 6] = [
    SignatureScheme::ED25519,
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA512,
];

/// The SHA-256 of a certificate in DER. Lists of revoked certificates use this name, too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// The fingerprint of a certificate.
    pub fn of(certificate: &[u8]) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest::digest(&digest::SHA256, certificate).as_ref());
        Self(bytes)
    }
}

/// 64 hexadecimal digits.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// A signature, with the certificates that prove its author.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The signature's algorithm, as a scheme number of TLS 1.3 (RFC 8446 section 4.2.3).
    pub scheme: u16,
    /// The signature.
    pub signature: Vec<u8>,
    /// The signer's certificate, and the certificates between it and a root, in DER.
    pub chain: Vec<Vec<u8>>,
}

/// The author of a signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signer {
    /// The node.
    pub identity: Identity,
    /// Whether the signer's certificate has the role of an authority.
    pub is_authority: bool,
    /// The signer's certificate.
    pub fingerprint: Fingerprint,
}

/// Why a signature proves nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureFault {
    /// The signature or a certificate cannot be read, or is too large.
    #[error("what should prove it cannot be read: {0}")]
    Malformed(&'static str),
    /// No root vouches for the certificate, or not at this time.
    #[error("its certificate does not hold here: {0}. Is it expired, or of another ca.pem?")]
    Untrusted(String),
    /// The certificate was revoked.
    #[error("the certificate {0} is revoked")]
    Revoked(Fingerprint),
    /// The content is not the signed content, or another key signed.
    #[error("the signature is not of this content by this certificate's key")]
    Forged,
}

/// Signs with a node's key, and checks the signatures of others.
pub struct Notary {
    held: RwLock<NodeKey>,
    revoked: RwLock<BTreeSet<Fingerprint>>,
}

struct NodeKey {
    key: Arc<dyn SigningKey>,
    chain: Vec<Vec<u8>>,
    is_authority: bool,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl NodeKey {
    fn new(credentials: &Credentials) -> Result<Self, String> {
        let provider = provider();
        let key = provider.key_provider.load_private_key(credentials.key.clone_key());
        let roots = Arc::new(roots(&credentials.authorities)?);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
        Ok(Self {
            key: key.map_err(|error| error.to_string())?,
            chain: credentials.chain.iter().map(|certificate| certificate.to_vec()).collect(),
            is_authority: credentials.is_authority(),
            verifier: verifier.map_err(|error| error.to_string())?,
        })
    }
}

impl fmt::Debug for Notary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notary").field("fingerprint", &self.fingerprint()).finish_non_exhaustive()
    }
}

impl Notary {
    /// A notary that signs with these credentials, and trusts their roots.
    ///
    /// # Errors
    /// The fault in the credentials, as text.
    pub fn new(credentials: &Credentials) -> Result<Self, String> {
        let held = RwLock::new(NodeKey::new(credentials)?);
        Ok(Self { held, revoked: RwLock::default() })
    }

    /// Signs with other credentials from now on.
    ///
    /// # Errors
    /// The fault in the credentials, as text. The earlier credentials stay in use.
    pub fn replace(&self, credentials: &Credentials) -> Result<(), String> {
        let held = NodeKey::new(credentials)?;
        *self.held.write().unwrap_or_else(PoisonError::into_inner) = held;
        Ok(())
    }

    /// Stops trusting these certificates.
    pub fn revoke(&self, revoked: BTreeSet<Fingerprint>) {
        *self.revoked.write().unwrap_or_else(PoisonError::into_inner) = revoked;
    }

    /// Whether this node's certificate has the role of an authority.
    pub fn is_authority(&self) -> bool {
        self.held().is_authority
    }

    /// The fingerprint of this node's certificate.
    pub fn fingerprint(&self) -> Fingerprint {
        self.held().chain.first().map_or(Fingerprint([0; 32]), |own| Fingerprint::of(own))
    }

    /// Signs `said`.
    ///
    /// # Errors
    /// The error of the key's library. No key that [`certs::load`](crate::certs::load) accepts causes one.
    pub fn sign(&self, said: &[u8]) -> Result<Signed, String> {
        let held = self.held();
        let signer = held.key.choose_scheme(&SCHEMES).ok_or("no scheme of TLS 1.3 is this key's")?;
        let signature = signer.sign(said).map_err(|error| error.to_string())?;
        Ok(Signed { scheme: u16::from(signer.scheme()), signature, chain: held.chain.clone() })
    }

    /// The signer of `said`. The chain must be valid now, and no certificate in it revoked.
    ///
    /// # Errors
    /// Why the signature proves no signer.
    pub fn check(&self, said: &[u8], signed: &Signed) -> Result<Signer, SignatureFault> {
        let bytes: usize = signed.chain.iter().map(Vec::len).sum();
        if signed.chain.len() > SETTINGS.seals.chain_max || bytes > SETTINGS.seals.chain_bytes_max {
            return Err(SignatureFault::Malformed("too many certificates"));
        }
        if signed.signature.len() > SETTINGS.seals.signature_bytes_max {
            return Err(SignatureFault::Malformed("too long a signature"));
        }
        let chain: Vec<CertificateDer<'_>> =
            signed.chain.iter().map(|certificate| CertificateDer::from(&certificate[..])).collect();
        let (own, between) = chain.split_first().ok_or(SignatureFault::Malformed("no certificate"))?;
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(
            u64::try_from(now_unix_s()).unwrap_or_default(),
        ));
        let verified = self.held().verifier.verify_client_cert(own, between, now);
        verified.map_err(|error| SignatureFault::Untrusted(error.to_string()))?;
        {
            let revoked = self.revoked.read().unwrap_or_else(PoisonError::into_inner);
            let of_chain = chain.iter().map(|certificate| Fingerprint::of(certificate));
            if let Some(found) = of_chain.into_iter().find(|found| revoked.contains(found)) {
                return Err(SignatureFault::Revoked(found));
            }
        }
        check_signature(said, signed, own)?;
        let Facts { identity, is_authority, .. } = facts(own).map_err(SignatureFault::Untrusted)?;
        let identity = identity.map_err(SignatureFault::Untrusted)?;
        Ok(Signer { identity, is_authority, fingerprint: Fingerprint::of(own) })
    }

    fn held(&self) -> RwLockReadGuard<'_, NodeKey> {
        self.held.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check_signature(said: &[u8], signed: &Signed, own: &CertificateDer<'_>) -> Result<(), SignatureFault> {
    let scheme = SignatureScheme::from(signed.scheme);
    if !SCHEMES.contains(&scheme) {
        return Err(SignatureFault::Malformed("an algorithm that this version does not know"));
    }
    let own =
        webpki::EndEntityCert::try_from(own).map_err(|error| SignatureFault::Untrusted(error.to_string()))?;
    let known = provider().signature_verification_algorithms.mapping;
    let algorithms = known.iter().find(|(of, _)| *of == scheme).map_or(&[][..], |(_, algorithms)| algorithms);
    // One scheme may have several algorithms, because a certificate may or may not name the key's curve.
    let is_valid = |algorithm| own.verify_signature(algorithm, said, &signed.signature).is_ok();
    if algorithms.iter().any(|algorithm| is_valid(*algorithm)) { Ok(()) } else { Err(SignatureFault::Forged) }
}

#[cfg(test)]
mod tests {
    use rcgen::{
        CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519,
        SanType, SignatureAlgorithm, string::Ia5String,
    };
    use tempfile::TempDir;

    use super::*;
    use crate::certs::{self, AUTHORITY_URI, SERVER_NAME};

    const SAID: &[u8] = b"acequia test\0 ten units to whom they belong";

    fn eu() -> Identity {
        Identity::new("eu", "eu-1")
    }

    fn us() -> Identity {
        Identity::new("us", "us-1")
    }

    /// A folder with an authority, `eu-1` with its role, and `us-1` without.
    fn folder() -> TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        certs::create(folder.path(), &[eu(), us()], &["eu-1"]).expect("certificates");
        folder
    }

    fn notary(folder: &TempDir, identity: &Identity) -> Notary {
        Notary::new(&certs::load(folder.path(), identity).expect("credentials")).expect("a notary")
    }

    #[test]
    fn a_signature_of_one_node_is_verified_by_another() {
        let folder = folder();
        let (eu_notary, us_notary) = (notary(&folder, &eu()), notary(&folder, &us()));
        for (by, identity, is_authority) in [(&eu_notary, eu(), true), (&us_notary, us(), false)] {
            let signed = by.sign(SAID).expect("signed");
            let signer = us_notary.check(SAID, &signed).expect("known");
            assert_eq!(signer, Signer { identity, is_authority, fingerprint: by.fingerprint() });
            assert_eq!(by.is_authority(), is_authority);
        }
    }

    #[test]
    fn a_changed_or_foreign_signature_is_refused() {
        let (folder, others) = (folder(), folder());
        let notary = notary(&folder, &eu());
        let signed = notary.sign(SAID).expect("signed");
        let stranger = super::tests::notary(&others, &eu()).sign(SAID).expect("signed");
        let by_us = super::tests::notary(&folder, &us()).sign(SAID).expect("signed");
        let check = |said: &[u8], signed: Signed| notary.check(said, &signed).expect_err("a fault");

        assert_eq!(check(b"acequia test\0 eleven units", signed.clone()), SignatureFault::Forged);
        assert!(matches!(check(SAID, stranger.clone()), SignatureFault::Untrusted(_)));
        let swapped = Signed { chain: signed.chain.clone(), ..by_us.clone() };
        assert_eq!(check(SAID, swapped), SignatureFault::Forged);
        let of_stranger = Signed { chain: signed.chain.clone(), ..stranger };
        assert_eq!(check(SAID, of_stranger), SignatureFault::Forged);
        for bytes in [0, 1, 63, 65, 2_000] {
            let fault = check(SAID, Signed { signature: vec![0; bytes], ..signed.clone() });
            assert!(matches!(fault, SignatureFault::Forged | SignatureFault::Malformed(_)), "{fault}");
        }
        for scheme in [0, 0x0401, 0x0403, 0x0804, u16::MAX] {
            let fault = check(SAID, Signed { scheme, ..signed.clone() });
            assert!(matches!(fault, SignatureFault::Forged | SignatureFault::Malformed(_)), "{fault}");
        }
        let own = signed.chain[0].clone();
        for chain in
            [vec![], vec![own.clone(); 9], vec![vec![0; 40_000]], vec![own[1..].to_vec()], vec![vec![]]]
        {
            let fault = check(SAID, Signed { chain, ..signed.clone() });
            assert!(matches!(fault, SignatureFault::Untrusted(_) | SignatureFault::Malformed(_)), "{fault}");
        }
        notary.revoke([Fingerprint::of(&own)].into());
        assert_eq!(check(SAID, signed), SignatureFault::Revoked(Fingerprint::of(&own)));
        assert!(notary.check(SAID, &by_us).is_ok(), "the others need no new ones");
    }

    /// A certificate made elsewhere, with any key and any time of validity.
    fn made_elsewhere(
        folder: &TempDir,
        algorithm: &'static SignatureAlgorithm,
        until_s: i64,
    ) -> (KeyPair, Vec<u8>) {
        let read = |file: &str| std::fs::read_to_string(folder.path().join(file)).expect("a file");
        let issuer = KeyPair::from_pem(&read("ca.key")).expect("a key");
        let issuer = Issuer::from_ca_cert_pem(&read("ca.pem"), issuer).expect("an authority");
        let mut parameters = CertificateParams::new([SERVER_NAME.to_owned()]).expect("a name");
        for uri in [eu().uri(), AUTHORITY_URI.to_owned()] {
            parameters.subject_alt_names.push(SanType::URI(Ia5String::try_from(uri).expect("a name")));
        }
        parameters.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let at = |s| time::OffsetDateTime::from_unix_timestamp(now_unix_s() + s).expect("a time");
        (parameters.not_before, parameters.not_after) = (at(-3_600), at(until_s));
        let key = KeyPair::generate_for(algorithm).expect("a key");
        let certificate = parameters.signed_by(&key, &issuer).expect("a certificate");
        (key, certificate.der().to_vec())
    }

    #[test]
    fn every_kind_of_tls_key_signs_and_an_expired_one_does_not() {
        let folder = folder();
        let notary = notary(&folder, &us());
        for algorithm in [&PKCS_ED25519, &PKCS_ECDSA_P256_SHA256] {
            for (until_s, holds) in [(3_600, true), (-60, false)] {
                let (key, certificate) = made_elsewhere(&folder, algorithm, until_s);
                let der = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
                let key = provider().key_provider.load_private_key(der).expect("a key");
                let signer = key.choose_scheme(&SCHEMES).expect("a scheme");
                let signature = signer.sign(SAID).expect("signed");
                let signed =
                    Signed { scheme: u16::from(signer.scheme()), signature, chain: vec![certificate] };
                let found = notary.check(SAID, &signed);
                match holds {
                    true => assert!(found.expect("known").is_authority),
                    false => assert!(matches!(found, Err(SignatureFault::Untrusted(_))), "{found:?}"),
                }
            }
        }
    }
}
