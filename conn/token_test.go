package conn

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"holdfast/codec"
)

// keys is one key pair of each kind.
type keys struct {
	secret  []byte
	rsa     *rsa.PrivateKey
	ed      ed25519.PrivateKey
	edPub   ed25519.PublicKey
	ecdsa   *ecdsa.PrivateKey
	foreign ed25519.PrivateKey
}

func makeKeys(t *testing.T) keys {
	t.Helper()
	k := keys{secret: []byte("0123456789abcdef0123456789abcdef")}
	var err error
	if k.rsa, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		t.Fatal(err)
	}
	if k.edPub, k.ed, err = ed25519.GenerateKey(rand.Reader); err != nil {
		t.Fatal(err)
	}
	if _, k.foreign, err = ed25519.GenerateKey(rand.Reader); err != nil {
		t.Fatal(err)
	}
	if k.ecdsa, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	return k
}

func sign(t *testing.T, m jwt.SigningMethod, key any, c jwt.MapClaims) string {
	t.Helper()
	s, err := jwt.NewWithClaims(m, c).SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func publicPEM(t *testing.T, key any) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

// tokenCase is one login by token and what becomes of it.
type tokenCase struct {
	token, user, device string
	capabilities        uint64
	code                codec.Code
	want                Identity // ExpireAtMs 0: an hour and the leeway from now
}

// tokenNow is what the clock says in the token tests.
func tokenNow() time.Time { return time.Unix(1_800_000_000, 0) }

// payload is that of a good token, with fields replaced, or taken out by nil.
func payload(more ...any) jwt.MapClaims {
	c := jwt.MapClaims{"sub": "alice", "exp": tokenNow().Add(time.Hour).Unix()}
	for i := 0; i < len(more); i += 2 {
		if more[i+1] == nil {
			delete(c, more[i].(string))
		} else {
			c[more[i].(string)] = more[i+1]
		}
	}
	return c
}

func goodTokens(t *testing.T, k *keys) map[string]tokenCase {
	ed := func(c jwt.MapClaims) string { return sign(t, jwt.SigningMethodEdDSA, k.ed, c) }
	return map[string]tokenCase{
		"hs256":             {token: sign(t, jwt.SigningMethodHS256, k.secret, payload()), device: "phone", want: Identity{User: "alice", Device: "phone"}},
		"rs256":             {token: sign(t, jwt.SigningMethodRS256, k.rsa, payload()), device: "phone", want: Identity{User: "alice", Device: "phone"}},
		"eddsa":             {token: ed(payload()), user: "alice", device: "phone", want: Identity{User: "alice", Device: "phone"}},
		"device in token":   {token: ed(payload("dev", "tab")), want: Identity{User: "alice", Device: "tab"}},
		"same device twice": {token: ed(payload("dev", "tab")), device: "tab", want: Identity{User: "alice", Device: "tab"}},
		"publisher":         {token: ed(payload("role", "publisher")), capabilities: codec.CapPublisher, want: Identity{User: "alice", Publisher: true}},
		"client role":       {token: ed(payload("role", "client")), device: "d", want: Identity{User: "alice", Device: "d"}},
		"within leeway":     {token: ed(payload("exp", tokenNow().Unix()-3)), device: "d", want: Identity{User: "alice", Device: "d", ExpireAtMs: (tokenNow().Unix() + 2) * 1000}},
	}
}

func wrongTokens(t *testing.T, k *keys) map[string]tokenCase {
	ed := func(c jwt.MapClaims) string { return sign(t, jwt.SigningMethodEdDSA, k.ed, c) }
	valid := ed(payload())
	parts := strings.Split(valid, ".")
	return map[string]tokenCase{
		"expired":              {token: ed(payload("exp", tokenNow().Unix()-60)), device: "d", code: codec.CodeTokenExpired},
		"expired and forged":   {token: sign(t, jwt.SigningMethodEdDSA, k.foreign, payload("exp", tokenNow().Unix()-60)), device: "d", code: codec.CodeUnauthorized},
		"not yet":              {token: ed(payload("nbf", tokenNow().Unix()+60)), device: "d", code: codec.CodeUnauthorized},
		"no exp":               {token: ed(payload("exp", nil)), device: "d", code: codec.CodeUnauthorized},
		"no sub":               {token: ed(payload("sub", nil)), device: "d", code: codec.CodeUnauthorized},
		"bad sub":              {token: ed(payload("sub", "a\nb")), device: "d", code: codec.CodeBadField},
		"no device":            {token: valid, code: codec.CodeBadField},
		"other user":           {token: valid, user: "bob", device: "d", code: codec.CodeForbidden},
		"other device":         {token: ed(payload("dev", "tab")), device: "phone", code: codec.CodeForbidden},
		"client would publish": {token: valid, device: "d", capabilities: codec.CapPublisher, code: codec.CodeForbidden},
		"publisher listens":    {token: ed(payload("role", "publisher")), device: "d", code: codec.CodeForbidden},
		"unknown role":         {token: ed(payload("role", "admin")), device: "d", code: codec.CodeForbidden},
		"role of another type": {token: ed(payload("role", 7)), device: "d", code: codec.CodeUnauthorized},
		"no token":             {user: "alice", device: "d", code: codec.CodeUnauthorized},
		"garbage":              {token: "a.b.c", device: "d", code: codec.CodeUnauthorized},
		"foreign key":          {token: sign(t, jwt.SigningMethodEdDSA, k.foreign, payload()), device: "d", code: codec.CodeUnauthorized},
		"signature cut":        {token: parts[0] + "." + parts[1] + ".", device: "d", code: codec.CodeUnauthorized},
		"none":                 {token: sign(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, payload()), device: "d", code: codec.CodeUnauthorized},
		"es256":                {token: sign(t, jwt.SigningMethodES256, k.ecdsa, payload()), device: "d", code: codec.CodeUnauthorized},
		"hs384 with secret":    {token: sign(t, jwt.SigningMethodHS384, k.secret, payload()), device: "d", code: codec.CodeUnauthorized},
		"public key as secret": {token: sign(t, jwt.SigningMethodHS256, publicPEM(t, &k.rsa.PublicKey), payload()), device: "d", code: codec.CodeUnauthorized},
		"ed public as secret":  {token: sign(t, jwt.SigningMethodHS256, []byte(k.edPub), payload()), device: "d", code: codec.CodeUnauthorized},
	}
}

func TestTokens(t *testing.T) {
	k := makeKeys(t)
	auth, err := NewJWT(JWTConfig{
		Keys: []Key{{"", HS256, k.secret}, {"r1", RS256, &k.rsa.PublicKey}, {"", EdDSA, k.edPub}},
		Now:  tokenNow,
	})
	if err != nil {
		t.Fatal(err)
	}
	cases := goodTokens(t, &k)
	maps.Copy(cases, wrongTokens(t, &k))
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			id, code, text := auth.Authenticate(&codec.Connect{
				Token: []byte(c.token), User: []byte(c.user), Device: []byte(c.device), Capabilities: c.capabilities})
			if code != c.code {
				t.Fatalf("code %v %q, want %v", code, text, c.code)
			}
			if code != codec.CodeNone {
				return
			}
			if c.want.ExpireAtMs == 0 {
				c.want.ExpireAtMs = tokenNow().Add(time.Hour + 5*time.Second).UnixMilli()
			}
			if id != c.want {
				t.Fatalf("identity %+v, want %+v", id, c.want)
			}
		})
	}
}

// A key id that a token names picks the key; an unknown one does not lock anybody out, since the signature decides.
func TestTokenKeysAreRotated(t *testing.T) {
	k := makeKeys(t)
	auth, err := NewJWT(JWTConfig{ExpiryOptional: true, Keys: []Key{{"old", EdDSA, k.edPub}, {"new", EdDSA, k.foreign.Public().(ed25519.PublicKey)}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		kid  string
		key  ed25519.PrivateKey
		code codec.Code
	}{
		{"old", k.ed, 0}, {"new", k.foreign, 0}, {"", k.ed, 0}, {"", k.foreign, 0}, {"third", k.foreign, 0},
		{"new", k.ed, codec.CodeUnauthorized},
	} {
		token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.MapClaims{"sub": "u"})
		if c.kid != "" {
			token.Header["kid"] = c.kid
		}
		signed, err := token.SignedString(c.key)
		if err != nil {
			t.Fatal(err)
		}
		if _, code, text := auth.Authenticate(&codec.Connect{Token: []byte(signed), Device: []byte("d")}); code != c.code {
			t.Errorf("kid %q: %v %s", c.kid, code, text)
		}
	}
}

// A token may name extensions that must be understood; whoever does not know them must refuse it.
func TestTokenWithCriticalExtensionsIsRefused(t *testing.T) {
	k := makeKeys(t)
	j, err := NewJWT(JWTConfig{Keys: []Key{{Algorithm: HS256, Key: k.secret}}})
	if err != nil {
		t.Fatal(err)
	}
	for crit, want := range map[bool]codec.Code{false: codec.CodeNone, true: codec.CodeUnauthorized} {
		token := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"sub": "alice", "exp": time.Now().Add(time.Hour).Unix()})
		if crit {
			token.Header["crit"] = []string{"b64"}
		}
		signed, err := token.SignedString(k.secret)
		if err != nil {
			t.Fatal(err)
		}
		if _, code, text := j.Authenticate(&codec.Connect{Token: []byte(signed), Device: []byte("phone")}); code != want {
			t.Errorf("crit %v: %s %s", crit, code, text)
		}
	}
}

func TestTokenIssuerAndAudience(t *testing.T) {
	k := makeKeys(t)
	auth, err := NewJWT(JWTConfig{ExpiryOptional: true, Issuer: "us", Audience: "gateway", Keys: []Key{{"", HS256, k.secret}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		iss, aud string
		code     codec.Code
	}{{"us", "gateway", 0}, {"them", "gateway", codec.CodeUnauthorized}, {"us", "shop", codec.CodeUnauthorized}} {
		token := sign(t, jwt.SigningMethodHS256, k.secret, jwt.MapClaims{"sub": "u", "iss": c.iss, "aud": c.aud})
		if _, code, _ := auth.Authenticate(&codec.Connect{Token: []byte(token), Device: []byte("d")}); code != c.code {
			t.Errorf("%+v: %v", c, code)
		}
	}
}

func TestKeyFiles(t *testing.T) {
	k := makeKeys(t)
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(k.ed)
	if err != nil {
		t.Fatal(err)
	}
	file := func(data []byte) string {
		path := filepath.Join(t.TempDir(), "key")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, c := range map[string]struct {
		algorithm Algorithm
		path      string
		text      string
	}{
		"secret":        {HS256, file(append(k.secret, '\n')), ""},
		"rsa":           {RS256, file(publicPEM(t, &k.rsa.PublicKey)), ""},
		"ed25519":       {EdDSA, file(publicPEM(t, k.edPub)), ""},
		"short secret":  {HS256, file([]byte("secret\n")), "at least 32 bytes"},
		"weak rsa":      {RS256, file(publicPEM(t, &weak.PublicKey)), "at least 2048 bits"},
		"swapped":       {RS256, file(publicPEM(t, k.edPub)), "wants an RSA public key"},
		"swapped back":  {EdDSA, file(publicPEM(t, &k.rsa.PublicKey)), "wants an Ed25519 public key"},
		"private key":   {EdDSA, file(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})), "is no public key"},
		"no pem":        {RS256, file([]byte("hello")), "no PEM block"},
		"missing":       {RS256, filepath.Join(t.TempDir(), "none"), "reading a token key"},
		"other algo":    {"ES256", file(publicPEM(t, &k.ecdsa.PublicKey)), "unknown algorithm"},
		"none for algo": {"none", file(k.secret), ""},
	} {
		t.Run(name, func(t *testing.T) {
			key, err := LoadKey(c.algorithm, "id", c.path)
			switch {
			case name == "none for algo":
				if err == nil {
					t.Fatal("a key for no algorithm")
				}
			case c.text == "" && err != nil, c.text != "" && (err == nil || !strings.Contains(err.Error(), c.text)):
				t.Fatalf("got %v", err)
			case err == nil:
				if _, err := NewJWT(JWTConfig{Keys: []Key{key}}); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	if _, err := NewJWT(JWTConfig{}); err == nil {
		t.Fatal("an authenticator without a key")
	}
}

// NoAuth believes the CONNECT; a publisher may be nameless.
func TestNoAuth(t *testing.T) {
	id, code, _ := NoAuth{}.Authenticate(&codec.Connect{Capabilities: codec.CapPublisher})
	if code != codec.CodeNone || !id.Publisher {
		t.Fatalf("%+v %v", id, code)
	}
	if _, code, _ := (NoAuth{}).Authenticate(&codec.Connect{User: []byte("u")}); code != codec.CodeBadField {
		t.Fatalf("no device: %v", code)
	}
}

// A connection does not outlive its token.
func TestLiveConnectionEndsWithItsToken(t *testing.T) {
	t.Parallel()
	k := makeKeys(t)
	auth, err := NewJWT(JWTConfig{Leeway: time.Nanosecond, Keys: []Key{{"", HS256, k.secret}}})
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, Config{Auth: auth}, newRecorder())
	p := dial(t, s)
	expire := time.Now().Add(2 * time.Second).Truncate(time.Second)
	token := sign(t, jwt.SigningMethodHS256, k.secret, jwt.MapClaims{"sub": "alice", "exp": expire.Unix()})
	p.send(codec.AppendConnect(nil, &codec.Connect{Version: 1, Device: []byte("phone"), Token: []byte(token)}))
	p.expect(codec.TypeWelcome)
	p.expectClose(codec.CodeTokenExpired)
	if late := time.Since(expire); late < 0 || late > time.Second {
		t.Fatalf("closed %s after the token's end", late)
	}
	again := dial(t, s)
	again.send(codec.AppendConnect(nil, &codec.Connect{Version: 1, Device: []byte("phone"), Token: []byte(token)}))
	again.expectClose(codec.CodeTokenExpired)
}
