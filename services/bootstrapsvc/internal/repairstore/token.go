package repairstore

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// MaxTokenLength bounds a token in bytes, as the API does.
const MaxTokenLength = 65_536

// version is that of the format. A plan does not outlive an update by much, so no older one is read.
const version = 1

// ErrInvalidToken says that a text is no token, or not one of this version.
var ErrInvalidToken = errors.New("not a token of a repair plan")

// Checksum is that of one step. That two steps have the same by accident is as likely as that a disk reads wrongly.
type Checksum [12]byte

// ChecksumOf is the checksum of a step that is written as this text.
func ChecksumOf(step string) Checksum {
	sum := sha256.Sum256([]byte(step))
	return Checksum(sum[:])
}

// Token is one plan as it was shown.
type Token struct {
	// Findings are the names of what is to be mended, in the order of the plan.
	Findings []string
	// Steps are checksums of the steps with all that they are guarded by, in their order.
	Steps []Checksum
	// Expires is when the token stops being taken, in whole seconds.
	Expires time.Time
}

// content is the token's JSON.
type content struct {
	Version  int      `json:"v"`
	Findings []string `json:"f"`
	Steps    []byte   `json:"s"`
	Expires  int64    `json:"e"`
}

// Encode returns the token's text. It fails where the findings are too many for one.
func (t Token) Encode() (string, error) {
	raw := make([][]byte, 0, len(t.Steps))
	for _, step := range t.Steps {
		raw = append(raw, step[:])
	}
	encoded, err := json.Marshal(content{Version: version, Findings: t.Findings, Steps: slices.Concat(raw...), Expires: t.Expires.Unix()})
	if err != nil {
		return "", fmt.Errorf("encode token: %w", err)
	}
	text := base64.RawURLEncoding.EncodeToString(encoded)
	if len(text) > MaxTokenLength {
		return "", fmt.Errorf("encode token: %d findings are too many for one plan, plan fewer", len(t.Findings))
	}
	return text, nil
}

// ParseToken reads a token's text; its error wraps ErrInvalid.
func ParseToken(text string) (Token, error) {
	if len(text) > MaxTokenLength {
		return Token{}, fmt.Errorf("%w: it is longer than any", ErrInvalidToken)
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return Token{}, ErrInvalidToken
	}
	var read content
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&read); err != nil {
		return Token{}, ErrInvalidToken
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Token{}, ErrInvalidToken
	}
	if read.Version != version {
		return Token{}, fmt.Errorf("%w of version %d, but of %d", ErrInvalidToken, version, read.Version)
	}
	token := Token{Findings: read.Findings, Expires: time.Unix(read.Expires, 0).UTC()}
	for step := range slices.Chunk(read.Steps, len(Checksum{})) {
		if len(step) != len(Checksum{}) {
			return Token{}, ErrInvalidToken
		}
		token.Steps = append(token.Steps, Checksum(step))
	}
	if again, err := token.Encode(); err != nil || again != text {
		return Token{}, ErrInvalidToken // another spelling would have another id
	}
	return token, nil
}

// TokenID names the application of the token with this text: 24 hexadecimal digits.
func TokenID(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:12])
}
