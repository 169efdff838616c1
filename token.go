package main

import (
	"bytes"
	"crypto"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// tokenCommand signs a token. Production tokens come from the back end that knows who is who; this is for tests.
type tokenCommand struct {
	Key    string `required:"" placeholder:"ALG:FILE" help:"Signing key: EdDSA:private.pem, RS256:private.pem or HS256:secret-file (ALG:ID:FILE to name its kid)."`
	User   string `required:"" help:"User the token is for (claim sub)."`
	Device string `help:"Device it is bound to (claim dev); empty: any device."`
	Role   string `enum:"client,publisher" default:"client" help:"client or publisher (claim role)."`
	TTL    string `name:"ttl" default:"1h" help:"How long it is valid (claim exp), for example 10m, 2h or 7d."`
}

// Help is the long help of the command.
func (tokenCommand) Help() string {
	return `Examples:
  openssl genpkey -algorithm ed25519 -out token.pem && openssl pkey -in token.pem -pubout -out token.pub.pem
  holdfast serve --jwt-key EdDSA:token.pub.pem
  HOLDFAST_TOKEN=$(holdfast token --key EdDSA:token.pem --user alice --device phone) holdfast listen --user alice --device phone
  holdfast token --key EdDSA:token.pem --user backend --role publisher --ttl 7d`
}

// Run signs and prints.
func (t *tokenCommand) Run(term *terminal) error {
	keys, err := parseKeys(t.Key)
	if err != nil {
		return &exitCode{exitUsage, fmt.Errorf("--key: %w", err)}
	}
	if len(keys) != 1 {
		return &exitCode{exitUsage, errors.New("--key: name one key, as ALG:FILE")}
	}
	ttl, err := parseDuration(t.TTL)
	if err != nil || ttl == 0 {
		return &exitCode{exitUsage, fmt.Errorf("--ttl %s: it must be a duration above zero", t.TTL)}
	}
	claims := jwt.MapClaims{"sub": t.User, "role": t.Role, "iat": time.Now().Unix(), "exp": time.Now().Add(ttl).Unix()}
	if t.Device != "" {
		claims["dev"] = t.Device
	}
	signed, err := signToken(keys[0], claims)
	if err != nil {
		return err
	}
	fmt.Fprintln(term.out, signed)
	return nil
}

// signToken reads the private key and signs.
func signToken(key Key, claims jwt.MapClaims) (string, error) {
	data, err := os.ReadFile(key.File)
	if err != nil {
		return "", fmt.Errorf("reading the signing key: %w", err)
	}
	var secret crypto.PrivateKey
	method := jwt.GetSigningMethod(key.Alg)
	switch key.Alg {
	case "EdDSA":
		secret, err = jwt.ParseEdPrivateKeyFromPEM(data)
	case "RS256":
		secret, err = jwt.ParseRSAPrivateKeyFromPEM(data)
	default: // HS256; parseKeys lets nothing else through
		secret = bytes.TrimRight(data, "\r\n") // as the gateway reads it
	}
	if err != nil {
		hint := ""
		if strings.Contains(string(data), "PUBLIC KEY") {
			hint = " (this is the public key; signing needs the private one)"
		}
		return "", fmt.Errorf("signing key %s: %w%s", key.File, err, hint)
	}
	token := jwt.NewWithClaims(method, claims)
	if key.ID != "" {
		token.Header["kid"] = key.ID
	}
	signed, err := token.SignedString(secret)
	if err != nil {
		return "", fmt.Errorf("signing with %s: %w", key.File, err)
	}
	return signed, nil
}
