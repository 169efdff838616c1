package conn

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
)

// Algorithm is how a token is signed, as its header names it.
type Algorithm string

// The algorithms taken.
const (
	HS256 Algorithm = "HS256" // shared secret
	RS256 Algorithm = "RS256" // RSA public key
	EdDSA Algorithm = "EdDSA" // Ed25519 public key
)

// Bounds below which a key can be guessed.
const (
	secretBytesMin = 32
	rsaBitsMin     = 2048
)

// Key verifies tokens of one algorithm.
type Key struct {
	ID        string // the kid of tokens signed with it; may be empty
	Algorithm Algorithm
	Key       any // []byte, *rsa.PublicKey or ed25519.PublicKey, as the algorithm wants
}

// check refuses keys that do not fit their algorithm, or are weak.
func (k Key) check() error {
	switch k.Algorithm {
	case HS256:
		if secret, ok := k.Key.([]byte); !ok || len(secret) < secretBytesMin {
			return fmt.Errorf("HS256 wants a secret of at least %d bytes", secretBytesMin)
		}
	case RS256:
		if public, ok := k.Key.(*rsa.PublicKey); !ok || public.N.BitLen() < rsaBitsMin {
			return fmt.Errorf("RS256 wants an RSA public key of at least %d bits", rsaBitsMin)
		}
	case EdDSA:
		if public, ok := k.Key.(ed25519.PublicKey); !ok || len(public) != ed25519.PublicKeySize {
			return errors.New("EdDSA wants an Ed25519 public key")
		}
	default:
		return fmt.Errorf("unknown algorithm %q: HS256, RS256 and EdDSA are known", k.Algorithm)
	}
	return nil
}

// LoadKey reads a key file: for HS256 the secret itself (line ends at its end do not count), for the others a public key in PEM.
func LoadKey(algorithm Algorithm, id, path string) (Key, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Key{}, fmt.Errorf("conn: reading a token key: %w", err)
	}
	k := Key{ID: id, Algorithm: algorithm}
	if algorithm == HS256 {
		k.Key = bytes.TrimRight(data, "\r\n")
	} else if k.Key, err = publicKey(data); err != nil {
		return Key{}, fmt.Errorf("conn: token key %s: %w", path, err)
	}
	if err := k.check(); err != nil {
		return Key{}, fmt.Errorf("conn: token key %s: %w", path, err)
	}
	return k, nil
}

// publicKey reads the first PEM block.
func publicKey(data []byte) (any, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("no PEM block")
	}
	switch block.Type {
	case "PUBLIC KEY":
		return x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		return x509.ParsePKCS1PublicKey(block.Bytes)
	case "CERTIFICATE":
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		return cert.PublicKey, nil
	}
	return nil, fmt.Errorf("PEM block %q is no public key", block.Type)
}
