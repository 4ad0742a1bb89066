"""Where systems and programs keep the certificates that they trust. Data only: it is read on the way to a start."""

from __future__ import annotations

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
