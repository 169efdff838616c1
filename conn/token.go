package conn

import (
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"holdfast/codec"
)

// NoAuth believes what a CONNECT says. For loopback and tests only.
type NoAuth struct{}

// Authenticate takes user and device from c; CapPublisher makes it a publisher, which may be nameless.
func (NoAuth) Authenticate(c *codec.Connect) (Identity, codec.Code, string) {
	id := Identity{User: string(c.User), Device: string(c.Device), Publisher: c.Capabilities&codec.CapPublisher != 0}
	code, text := id.check()
	return id, code, text
}

// check refuses identities that could not be addressed.
func (id *Identity) check() (codec.Code, string) {
	if id.Publisher {
		return codec.CodeNone, ""
	}
	if !codec.ValidUser([]byte(id.User)) {
		return codec.CodeBadField, "user missing or not valid"
	}
	if !codec.ValidDevice([]byte(id.Device)) {
		return codec.CodeBadField, "device missing or not valid"
	}
	return codec.CodeNone, ""
}

// JWTConfig says which tokens are good.
type JWTConfig struct {
	Keys []Key // at least one

	// ExpiryOptional accepts tokens without exp. Default: exp is required.
	ExpiryOptional bool
	// Leeway is how far clocks may differ, for exp and nbf. Default 5 s.
	Leeway time.Duration
	// Issuer and Audience, when set, must be what iss and aud say.
	Issuer   string
	Audience string

	Now func() time.Time // default time.Now
}

// JWT checks signed tokens: claims sub (user), dev (device, optional), role ("client", the default, or "publisher"), exp, nbf.
// A key is good for one algorithm only; a token with another algorithm, or with none, is refused however it is signed. Where both the
// token and the CONNECT name a user or device, they must be the same. One check costs 3 µs (HS256) to 60 µs (EdDSA) of its event loop.
type JWT struct {
	parser *jwt.Parser
	keys   []Key
	leeway time.Duration
}

// claims is the payload of a token.
type claims struct {
	jwt.RegisteredClaims
	Device string `json:"dev"`
	Role   string `json:"role"`
}

// NewJWT checks the configuration and returns the authenticator. It is safe for concurrent use.
func NewJWT(cfg JWTConfig) (*JWT, error) {
	if len(cfg.Keys) == 0 {
		return nil, errors.New("conn: token login without a key")
	}
	if cfg.Leeway < 0 {
		return nil, errors.New("conn: token leeway must not be negative")
	}
	orDuration(&cfg.Leeway, 5*time.Second)
	var algorithms []string
	for i, k := range cfg.Keys {
		if err := k.check(); err != nil {
			return nil, fmt.Errorf("conn: token key %d: %w", i+1, err)
		}
		algorithms = append(algorithms, string(k.Algorithm))
	}
	options := []jwt.ParserOption{jwt.WithValidMethods(algorithms), jwt.WithLeeway(cfg.Leeway)}
	if !cfg.ExpiryOptional {
		options = append(options, jwt.WithExpirationRequired())
	}
	if cfg.Issuer != "" {
		options = append(options, jwt.WithIssuer(cfg.Issuer))
	}
	if cfg.Audience != "" {
		options = append(options, jwt.WithAudience(cfg.Audience))
	}
	if cfg.Now != nil {
		options = append(options, jwt.WithTimeFunc(cfg.Now))
	}
	return &JWT{parser: jwt.NewParser(options...), keys: cfg.Keys, leeway: cfg.Leeway}, nil
}

// keyFor returns the keys a token may be signed with: those of its algorithm, and of its key id where it names one we know.
func (j *JWT) keyFor(t *jwt.Token) (any, error) {
	if _, critical := t.Header["crit"]; critical {
		return nil, errors.New("the token has extensions that must be understood, and none is known") // RFC 7515, 4.1.11
	}
	kid, _ := t.Header["kid"].(string)
	var all, named []jwt.VerificationKey
	for _, k := range j.keys {
		if string(k.Algorithm) != t.Method.Alg() {
			continue
		}
		all = append(all, k.Key)
		if kid != "" && k.ID == kid {
			named = append(named, k.Key)
		}
	}
	if len(named) > 0 {
		all = named
	}
	if len(all) == 0 {
		return nil, errors.New("no key for this algorithm")
	}
	return jwt.VerificationKeySet{Keys: all}, nil
}

// Authenticate checks the token of c.
func (j *JWT) Authenticate(c *codec.Connect) (Identity, codec.Code, string) {
	if len(c.Token) == 0 {
		return Identity{}, codec.CodeUnauthorized, "token missing"
	}
	var cl claims
	_, err := j.parser.ParseWithClaims(string(c.Token), &cl, j.keyFor)
	switch {
	case errors.Is(err, jwt.ErrTokenExpired) && !errors.Is(err, jwt.ErrTokenSignatureInvalid):
		return Identity{}, codec.CodeTokenExpired, "token expired"
	case errors.Is(err, jwt.ErrTokenNotValidYet):
		return Identity{}, codec.CodeUnauthorized, "token not valid yet"
	case err != nil: // why exactly is for nobody who guesses tokens
		return Identity{}, codec.CodeUnauthorized, "token not valid"
	}
	return j.identity(c, &cl)
}

// identity brings token and CONNECT together.
func (j *JWT) identity(c *codec.Connect, cl *claims) (Identity, codec.Code, string) {
	id := Identity{User: cl.Subject, Device: cl.Device}
	if cl.ExpiresAt != nil && cl.ExpiresAt.Year() < 10_000 { // beyond that milliseconds overflow, and nobody waits for it
		id.ExpireAtMs = cl.ExpiresAt.Add(j.leeway).UnixMilli()
	}
	switch cl.Role {
	case "publisher":
		if c.Capabilities&codec.CapPublisher == 0 { // let in, it would wait for messages that never come
			return Identity{}, codec.CodeForbidden, "the token's role is publisher"
		}
		id.Publisher = true
	case "", "client":
		if c.Capabilities&codec.CapPublisher != 0 {
			return Identity{}, codec.CodeForbidden, "the token's role is not publisher"
		}
	default:
		return Identity{}, codec.CodeForbidden, "unknown role in the token"
	}
	if id.User == "" {
		return Identity{}, codec.CodeUnauthorized, "token without sub"
	}
	if len(c.User) > 0 && string(c.User) != id.User {
		return Identity{}, codec.CodeForbidden, "the token is for another user"
	}
	if id.Device == "" {
		id.Device = string(c.Device)
	} else if len(c.Device) > 0 && string(c.Device) != id.Device {
		return Identity{}, codec.CodeForbidden, "the token is for another device"
	}
	code, text := id.check()
	return id, code, text
}
