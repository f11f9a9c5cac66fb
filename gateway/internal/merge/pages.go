package merge

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"slices"
	"strings"
)

// Named is what lists are made of.
type Named interface {
	// GetName orders the list.
	GetName() string
	// GetEpoch tells which of two reports about one name is the later one.
	GetEpoch() int64
}

// Page is one replica's page, ordered by name.
type Page[T Named] struct {
	Items []T
	// Token asks for what follows the last item, at any replica; empty when nothing follows here. A page with a token is not
	// empty.
	Token string
}

// Position is a place in the merged list.
type Position struct {
	// Token is a token of a replica, from which to ask all of them; empty for the beginning.
	Token string
	// After is the last name that was given out already, where that is behind Token.
	After string
}

// Cut merges pages that were all asked for from the same position, and gives at most limit items.
//
// What is known for certain reaches as far as the page that ends first: behind it its replica may have more. There the merged
// page ends as well, and the token of that replica, which all of them understand, goes on. Only where that would be more than
// limit does the list end in the middle of what was read, and the next page begins by reading it again.
//
// Of two items with one name the one with the higher epoch counts. more says whether the list goes on at next, which may be so
// also when there is no item yet.
func Cut[T Named](pages []Page[T], from Position, limit int) (items []T, next Position, more bool) {
	for _, page := range pages {
		if page.Token == "" || len(page.Items) == 0 {
			continue
		}
		if last := page.Items[len(page.Items)-1].GetName(); !more || last < next.After {
			next, more = Position{Token: page.Token, After: last}, true
		}
	}
	for _, page := range pages {
		for _, item := range page.Items {
			if name := item.GetName(); name > from.After && (!more || name <= next.After) {
				items = append(items, item)
			}
		}
	}
	items = distinct(items)
	if len(items) > limit {
		items = items[:limit]
		return items, Position{Token: from.Token, After: items[limit-1].GetName()}, true
	}
	if next.After >= from.After {
		next.After = "" // the token says it
	} else if more {
		next.After = from.After // these pages were shorter than those before and end within what was given out
	}
	return items, next, more
}

// distinct orders by name and keeps the latest report about each.
func distinct[T Named](items []T) []T {
	slices.SortStableFunc(items, func(a, b T) int {
		return cmp.Or(cmp.Compare(a.GetName(), b.GetName()), cmp.Compare(b.GetEpoch(), a.GetEpoch()))
	})
	return slices.CompactFunc(items, func(a, b T) bool { return a.GetName() == b.GetName() })
}

// ErrToken is a page token that no gateway made for a list with the same arguments.
var ErrToken = errors.New("page_token is not from a list with the same arguments; list again without it")

// Two kinds of token: a replica's own behind plainMark, which the replicas check; and behind cutMark the last name under a
// checksum, a dot, and the replica's token, if any. They grant nothing: they only say where to go on.
const (
	plainMark = "p"
	cutMark   = "c"

	checksumLength = 8
)

// Encode writes the position down. arguments are what the list is of: all of its request but page size and token.
func (p Position) Encode(arguments string) string {
	if p.After == "" {
		return plainMark + p.Token
	}
	seal := checksum(arguments, p)
	return cutMark + base64.RawURLEncoding.EncodeToString(append(seal, p.After...)) + "." + p.Token
}

// ParsePosition reads what Encode wrote for the same arguments, and the empty token as the beginning. The error is ErrToken.
func ParsePosition(token, arguments string) (Position, error) {
	switch {
	case token == "":
		return Position{}, nil
	case strings.HasPrefix(token, plainMark) && len(token) > len(plainMark):
		return Position{Token: token[len(plainMark):]}, nil
	case !strings.HasPrefix(token, cutMark):
		return Position{}, ErrToken
	}
	name, rest, _ := strings.Cut(token[len(cutMark):], ".")
	raw, err := base64.RawURLEncoding.DecodeString(name)
	if err != nil || len(raw) <= checksumLength {
		return Position{}, ErrToken
	}
	p := Position{Token: rest, After: string(raw[checksumLength:])}
	if string(raw[:checksumLength]) != string(checksum(arguments, p)) {
		return Position{}, ErrToken
	}
	return p, nil
}

func checksum(arguments string, p Position) []byte {
	sum := sha256.Sum256([]byte("trivet.gateway.v1\x00" + arguments + "\x00" + p.After + "\x00" + p.Token))
	return sum[:checksumLength:checksumLength]
}
