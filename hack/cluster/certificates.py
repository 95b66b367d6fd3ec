"""A certificate authority for one cluster, the certificates it signs, and the kubeconfigs that hold them."""

import base64
import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CONTEXT = "disagg-local"
_LIFE = timedelta(days=365)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes

    def write(self, directory: Path, name: str) -> None:
        """Write `<name>.crt` and `<name>.key`."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{name}.crt").write_bytes(self.certificate)
        key = directory / f"{name}.key"
        key.touch(mode=0o600)
        key.write_bytes(self.key)


@dataclass(frozen=True)
class Authority:
    """Signs for one cluster."""

    pair: Pair

    def server(self, names: Sequence[str], addresses: Sequence[str]) -> Pair:
        """A server certificate for host names and IP addresses."""
        alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
        alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        return self._sign("server", [], ExtendedKeyUsageOID.SERVER_AUTH, alternatives)

    def client(self, user: str, groups: Sequence[str] = ()) -> Pair:
        """A client certificate: Kubernetes reads the user from its name and groups from its organisations."""
        return self._sign(user, groups, ExtendedKeyUsageOID.CLIENT_AUTH, [])

    def _sign(
        self, name: str, groups: Sequence[str], usage: x509.ObjectIdentifier, alternatives: list[x509.GeneralName]
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject.append(x509.NameAttribute(NameOID.COMMON_NAME, name))
        issuer = x509.load_pem_x509_certificate(self.pair.certificate)
        builder = _builder(x509.Name(subject), issuer.subject, key.public_key())
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        signer = serialization.load_pem_private_key(self.pair.key, None)
        if not isinstance(signer, ec.EllipticCurvePrivateKey):
            raise TypeError("the authority's key is not an elliptic-curve key")
        return _pair(builder.sign(signer, hashes.SHA256()), key)


def new_authority() -> Authority:
    """A fresh authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "disagg-local-ca")])
    builder = _builder(name, name, key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return Authority(_pair(builder.sign(key, hashes.SHA256()), key))


def service_account_key() -> bytes:
    """A key that signs ServiceAccount tokens, in PEM."""
    return _key_bytes(ec.generate_private_key(ec.SECP256R1()))


def kubeconfig(server: str, authority: Authority, pair: Pair) -> str:
    """A kubeconfig for a client certificate."""
    user = {"client-certificate-data": _text(pair.certificate), "client-key-data": _text(pair.key)}
    return _kubeconfig(server, authority, user)


def token_kubeconfig(server: str, authority: Authority, token: str) -> str:
    """A kubeconfig for a token, such as a ServiceAccount's."""
    return _kubeconfig(server, authority, {"token": token})


def _kubeconfig(server: str, authority: Authority, user: dict[str, str]) -> str:
    cluster = {"server": server, "certificate-authority-data": _text(authority.pair.certificate)}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT, "cluster": cluster}],
        "users": [{"name": CONTEXT, "user": user}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT}}],
        "current-context": CONTEXT,
    }
    return json.dumps(content, indent=2)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + _LIFE)


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), _key_bytes(key))


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
