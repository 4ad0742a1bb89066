"""Where systems and programs look for the certificates that they trust: files, folders and variables.

It is loaded on the way to a start, so it imports next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

# One file with all roots, as the distributions have it. To read the system's roots, the first that exists is taken.
BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine, Arch, Gentoo, Void, NixOS
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  # Fedora, RHEL 7 and later
    "/etc/pki/tls/certs/ca-bundle.crt",  # RHEL, CentOS, Amazon Linux; NixOS has it too
    "/etc/ssl/ca-bundle.pem",  # openSUSE
    "/var/lib/ca-certificates/ca-bundle.pem",  # openSUSE, where the one above leads to
    "/etc/ca-certificates/extracted/tls-ca-bundle.pem",  # Arch
    "/etc/ssl/certs/ca-bundle.crt",  # NixOS, links of others
    "/etc/pki/tls/cacert.pem",  # OpenELEC
    "/etc/pki/tls/cert.pem",  # RHEL, as OpenSSL has it
    "/etc/ssl/cert.pem",  # Alpine, macOS, OpenBSD, FreeBSD
    "/usr/local/etc/ssl/cert.pem",  # FreeBSD
    "/usr/local/share/certs/ca-root-nss.crt",  # FreeBSD's ca_root_nss
    "/usr/local/ssl/cert.pem",  # an OpenSSL built by hand
    "/nix/var/nix/profiles/default/etc/ssl/certs/ca-bundle.crt",  # Nix on other systems
    "/home/linuxbrew/.linuxbrew/etc/ca-certificates/cert.pem",  # Homebrew
    "/data/data/com.termux/files/usr/etc/tls/cert.pem",  # Termux
)
# Folders in which OpenSSL finds a certificate by the hash of its name.
HASHED_FOLDERS = (
    "/etc/ssl/certs",  # Debian and most others; a link to one of the next two elsewhere
    "/etc/pki/tls/certs",  # RHEL
    "/etc/pki/ca-trust/extracted/pem/directory-hash",  # Fedora 41 and later
    "/var/lib/ca-certificates/openssl",  # openSUSE
    "/var/lib/ca-certificates/pem",  # openSUSE, for GnuTLS
    "/etc/ca-certificates/extracted/cadir",  # Arch
    "/usr/lib/ssl/certs",
    "/usr/local/ssl/certs",
)
# Folders from which p11-kit reads: GnuTLS and NSS on Fedora and Arch.
ANCHOR_FOLDERS = ("/etc/pki/ca-trust/source/anchors", "/etc/ca-certificates/trust-source/anchors")
JAVA_STORES = (
    "/etc/ssl/certs/java/cacerts",  # Debian, Arch
    "/etc/pki/ca-trust/extracted/java/cacerts",  # Fedora, RHEL
    "/etc/pki/java/cacerts",
    "/var/lib/ca-certificates/java-cacerts",  # openSUSE
    "/etc/ssl/java/cacerts",
)
# What every Java has by default. It protects nothing, here as there: certificates are public.
JAVA_PASSWORD = "changeit"  # noqa: S105
# Folders that hold JVMs, each in a folder of its own. "~" is the command's home.
JAVA_FOLDERS = (
    "/usr/lib/jvm",
    "/usr/lib64/jvm",
    "/usr/java",
    "/opt/java",
    "~/.sdkman/candidates/java",
    "~/.jdks",
    "~/.gradle/jdks",
    "~/.asdf/installs/java",
    "~/.local/share/mise/installs/java",
)
# In a JVM's own folder; the second before Java 9.
IN_JAVA = ("lib/security/cacerts", "jre/lib/security/cacerts")
# In a folder of Python packages.
IN_PACKAGES = (
    "certifi/cacert.pem",
    "pip/_vendor/certifi/cacert.pem",
    "botocore/cacert.pem",
    "grpc/_cython/_credentials/roots.pem",
    "httplib2/cacerts.txt",
)
IN_CONDA = ("ssl/cacert.pem", "ssl/cert.pem")


# Environment variables, for all that do not read the system's store. Every one must name a file. None may switch a
# check off, and none may be set that a program of another version stumbles over.
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
# What is read of the caller's own: in the place of the system's roots, and in addition to them.
INSTEAD_OF_SYSTEM = "SSL_CERT_FILE"
ADDED_BY_CALLER = ("NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


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
