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

// MaxTokenLength is the longest token in bytes. The API has the same limit.
const MaxTokenLength = 65_536

// tokenVersion is the version of the format. Only this version is read: a plan expires within
// minutes.
const tokenVersion = 1

// ErrInvalidToken says that a text is not a token, or not one of this version.
var ErrInvalidToken = errors.New("not a token of a repair plan")

// Checksum is the checksum of one step.
type Checksum [12]byte

// ChecksumOf returns the checksum of a step with this material.
func ChecksumOf(material string) Checksum {
	sum := sha256.Sum256([]byte(material))
	return Checksum(sum[:])
}

// Token identifies one plan as it was shown to a person.
type Token struct {
	// Findings are the names of the findings to repair, in the order of the plan.
	Findings []string
	// Steps are the checksums of the steps with their guards, in their order.
	Steps []Checksum
	// Expires is when the token expires, in whole seconds.
	Expires time.Time
}

// tokenContent is the JSON form of a token.
type tokenContent struct {
	Version  int      `json:"v"`
	Findings []string `json:"f"`
	Steps    []byte   `json:"s"`
	Expires  int64    `json:"e"`
}

// Encode returns the token's text. It fails if the text would be longer than MaxTokenLength.
func (t Token) Encode() (string, error) {
	raw := make([][]byte, 0, len(t.Steps))
	for _, step := range t.Steps {
		raw = append(raw, step[:])
	}
	encoded, err := json.Marshal(tokenContent{
		Version: tokenVersion, Findings: t.Findings, Steps: slices.Concat(raw...), Expires: t.Expires.Unix(),
	})
	if err != nil {
		return "", fmt.Errorf("encode token: %w", err)
	}
	text := base64.RawURLEncoding.EncodeToString(encoded)
	if len(text) > MaxTokenLength {
		return "", fmt.Errorf("encode token: %d findings are too many for one plan, plan fewer", len(t.Findings))
	}
	return text, nil
}

// ParseToken parses a token's text. The error wraps ErrInvalidToken.
func ParseToken(text string) (Token, error) {
	if len(text) > MaxTokenLength {
		return Token{}, fmt.Errorf("%w: it is longer than any", ErrInvalidToken)
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return Token{}, ErrInvalidToken
	}
	var content tokenContent
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&content); err != nil {
		return Token{}, ErrInvalidToken
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Token{}, ErrInvalidToken
	}
	if content.Version != tokenVersion {
		return Token{}, fmt.Errorf("%w of version %d, but of %d", ErrInvalidToken, tokenVersion, content.Version)
	}
	token := Token{Findings: content.Findings, Expires: time.Unix(content.Expires, 0).UTC()}
	for step := range slices.Chunk(content.Steps, len(Checksum{})) {
		if len(step) != len(Checksum{}) {
			return Token{}, ErrInvalidToken
		}
		token.Steps = append(token.Steps, Checksum(step))
	}
	if again, err := token.Encode(); err != nil || again != text {
		return Token{}, ErrInvalidToken // another encoding would have another ID
	}
	return token, nil
}

// TokenID returns the ID of the repair that applies the token with this text: 24 hexadecimal
// digits.
func TokenID(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:12])
}
