"""Keys, certificates and kubeconfigs of a test control plane."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# A control plane lives for one run; a week is longer than any.
VALIDITY = dt.timedelta(days=7)
# The API server's certificate must not be "not yet valid" for a clock that was just set back.
CLOCK_SKEW = dt.timedelta(hours=1)
# The name under which pods reach the API server; also the issuer of ServiceAccount tokens.
API_SERVER_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


@dataclass(frozen=True, kw_only=True)
class KeyPair:
    """A private key and its certificate, as PEM files."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority that lives as long as one control plane."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kvoffload test cluster")])
        certificate = (
            self._builder(subject=self._name, key=self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_ca_key_usage(), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pair = KeyPair(certificate=directory / "ca.crt", key=directory / "ca.key")
        self.pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        _write_key(self.pair.key, self._key)

    def issue(
        self,
        *,
        file_name: str,
        common_name: str,
        organizations: Sequence[str] = (),
        server_names: Sequence[str] = (),
        server_addresses: Sequence[str] = (),
    ) -> KeyPair:
        """Issue a certificate: a server's if it has server names, a client's otherwise.

        Args:
            file_name: Where it goes, without suffix, in the authority's folder.
            common_name: For clients: the user name that Kubernetes sees.
            organizations: For clients: the groups that Kubernetes sees.
            server_names: DNS names of a server.
            server_addresses: IP addresses of a server.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, o) for o in organizations),
                x509.NameAttribute(NameOID.COMMON_NAME, common_name),
            ]
        )
        usage = ExtendedKeyUsageOID.SERVER_AUTH if server_names else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = self._builder(subject=subject, key=key.public_key()).add_extension(
            x509.ExtendedKeyUsage([usage]), critical=False
        )
        if server_names:
            alternatives: list[x509.GeneralName] = [x509.DNSName(n) for n in server_names]
            alternatives += [x509.IPAddress(ipaddress.ip_address(a)) for a in server_addresses]
            builder = builder.add_extension(
                x509.SubjectAlternativeName(alternatives), critical=False
            )
        certificate = builder.sign(self._key, hashes.SHA256())
        pair = KeyPair(
            certificate=self._directory / f"{file_name}.crt",
            key=self._directory / f"{file_name}.key",
        )
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        _write_key(pair.key, key)
        return pair

    def _builder(
        self, *, subject: x509.Name, key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_SKEW)
            .not_valid_after(now + VALIDITY)
            # Clients that verify strictly (Python 3.13 and later do) want both key identifiers.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )


def write_service_account_keys(directory: Path) -> KeyPair:
    """Make the key pair that signs ServiceAccount tokens; ``certificate`` is the public key."""
    key = ec.generate_private_key(ec.SECP256R1())
    pair = KeyPair(
        certificate=directory / "service-account.pub", key=directory / "service-account.key"
    )
    _write_key(pair.key, key)
    pair.certificate.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return pair


def write_kubeconfig(
    path: Path, *, server: str, ca_file: Path, client: KeyPair | None = None, token: str = ""
) -> Path:
    """Write a kubeconfig with one context, for a client certificate or a token."""
    user: dict[str, str] = {"token": token}
    if client is not None:
        user = {
            "client-certificate": str(client.certificate),
            "client-key": str(client.key),
        }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "test", "cluster": {"server": server, "certificate-authority": str(ca_file)}}
        ],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
        "current-context": "test",
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(document))
    return path


def _ca_key_usage() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
