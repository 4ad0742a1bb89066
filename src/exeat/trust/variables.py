"""Environment variables that tell programs whom to trust: for all that do not read the system's store.

Every one must name a file. None may switch a check off, and none may be set that a program of another version
stumbles over.
"""

from __future__ import annotations

from collections.abc import Mapping

from exeat.trust.places import JAVA_PASSWORD

# These take the file instead of what they have, so it holds the system's roots as well.
_INSTEAD = (
    "SSL_CERT_FILE",  # OpenSSL, and so Python's ssl, httpx, aiohttp, Ruby, PHP, Perl, .NET, Crystal; Go; rustls, uv
    "CURL_CA_BUNDLE",  # curl's program, requests, R; libcurl itself reads no variable
    "REQUESTS_CA_BUNDLE",  # Python requests: pip, poetry, twine, Azure's and many others' tools
    "PIP_CERT",  # pip, before a cert of its configuration file
    "AWS_CA_BUNDLE",  # botocore and the AWS CLI, AWS SDKs
    "HTTPLIB2_CA_CERTS",  # httplib2: Google's older Python clients
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",  # gRPC in C: Python, Ruby, PHP, C#
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",  # gcloud
    "CONDA_SSL_VERIFY",  # conda: true, false or a file
    "GIT_SSL_CAINFO",  # git
    "CARGO_HTTP_CAINFO",  # cargo
    "npm_config_cafile",  # npm and pnpm, before a cafile of .npmrc
    "BUNDLE_SSL_CA_CERT",  # Ruby's bundler
    "COMPOSER_CAFILE",  # PHP's composer
    "PERL_LWP_SSL_CA_FILE",  # Perl's LWP
    "HTTPS_CA_FILE",  # Perl's older Crypt::SSLeay
    "HEX_CACERTS_PATH",  # Elixir's mix and hex
    "JULIA_SSL_CA_ROOTS_PATH",  # Julia, which takes SSL_CERT_DIR before SSL_CERT_FILE
    "SYSTEM_CERTIFICATE_PATH",  # Haskell: stack, cabal, pandoc
    "NIX_SSL_CERT_FILE",  # Nix, and what nixpkgs has built
)
# These add the file to what they have. Not set: YARN_HTTPS_CA_FILE_PATH, since yarn 2 and 3 end at a setting that
# they do not know, and yarn reads Node's; DENO_TLS_CA_STORE, since the file has the system's roots in it.
_ADDED = (
    "NODE_EXTRA_CA_CERTS",  # Node: npm, yarn, pnpm, Electron; Bun; Deno from 2.8 on
    "DENO_CERT",  # Deno
)
_JAVA = "JAVA_TOOL_OPTIONS"


def trust_variables(
    bundle: str, java_store: str | None = None, inherited: Mapping[str, str] | None = None, *, own: str = ""
) -> dict[str, str]:
    """The variables for a command that is to trust the bundle.

    `own`: a file without the system's roots, for programs that have roots of their own and read the file at every
    start. `java_store` only where no key store can be put in its place: a JVM prints that it was given options.
    `inherited` is the environment that they are added to; options for Java in it are kept.
    """
    values = dict.fromkeys(_INSTEAD, bundle) | dict.fromkeys(_ADDED, own or bundle)
    if java_store is not None:
        given = (inherited or {}).get(_JAVA, "")
        values[_JAVA] = f"{given} {_java_options(java_store)}".lstrip()
    return values


def _java_options(store: str) -> str:
    """As the JVM splits them: at spaces, and quotes keep them together."""
    quote = '"' if any(each.isspace() or each == "'" for each in store) else ""
    return (
        f"{quote}-Djavax.net.ssl.trustStore={store}{quote} -Djavax.net.ssl.trustStoreType=JKS"
        f" -Djavax.net.ssl.trustStorePassword={JAVA_PASSWORD}"
    )
