//! Certificates that are the same in every run. They use Ed25519, whose signatures need no chance, and keys
//! that anybody can know.

use std::path::Path;

use acequia_mesh::{
    Identity,
    certs::{AUTHORITY_URI, SERVER_NAME},
};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, PKCS_ED25519, SanType, SerialNumber,
};

/// The bytes of an Ed25519 key before the secret (RFC 8410, section 7).
const PKCS8: [u8; 16] =
    [0x30, 0x2E, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2B, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// Writes `ca.pem`, and `NODE.pem` and `NODE.key` for each node. All nodes may make versions of the
/// catalogue. The certificates are valid from 1975 until 4096.
pub(crate) fn write(folder: &Path, nodes: &[Identity]) -> Result<(), Box<dyn std::error::Error>> {
    let mut authority = CertificateParams::new([])?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.distinguished_name.push(DnType::CommonName, "the authority of a simulation");
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    authority.serial_number = Some(SerialNumber::from(1));
    let authority = CertifiedIssuer::self_signed(authority, key(0)?)?;
    std::fs::write(folder.join("ca.pem"), authority.pem())?;
    for (number, node) in (1..).zip(nodes) {
        let mut own = CertificateParams::new([SERVER_NAME.to_owned()])?;
        for uri in [node.uri(), AUTHORITY_URI.to_owned()] {
            own.subject_alt_names.push(SanType::URI(uri.try_into()?));
        }
        own.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        own.serial_number = Some(SerialNumber::from(u64::from(number) + 1));
        let key = key(number)?;
        let certificate = own.signed_by(&key, &authority)?;
        std::fs::write(folder.join(format!("{}.pem", node.node)), certificate.pem())?;
        std::fs::write(folder.join(format!("{}.key", node.node)), key.serialize_pem())?;
    }
    Ok(())
}

fn key(number: u8) -> Result<KeyPair, rcgen::Error> {
    let bytes = [&PKCS8[..], &[number + 1; 32]].concat();
    KeyPair::from_pkcs8_der_and_sign_algo(&bytes.as_slice().into(), &PKCS_ED25519)
}
