package merge

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Page is one replica's page, ordered by name.
type Page struct {
	Items []Item
	// Token continues after the last item, at any replica; it is empty on the last page of the
	// replica. A page with a token is not empty.
	Token string
}

// Position is a place in the merged list.
type Position struct {
	// Token is a token of a replica, which all replicas accept; empty at the start.
	Token string
	// After is the last name that was returned, if it is after Token.
	After string
}

// Cut merges pages that start at the same position and returns at most limit items.
//
// The merged page ends where the first page with a token ends, because its replica may have further
// items there. The token of that replica is the next position. If the merged page has more than
// limit items, it ends at limit, and the next page reads the remaining items again.
//
// Of two items with one name the one with the higher epoch counts. more reports whether the list
// continues at next, which is possible without any item.
func Cut(pages []Page, from Position, limit int) (items []Item, next Position, more bool) {
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
		next.After = "" // the token implies it
	} else if more {
		next.After = from.After // these pages end within what was returned before
	}
	return items, next, more
}

// Check returns why a page cannot be what a replica returned for a page of at most limit items: it
// is too large, or not ordered by name.
func (p Page) Check(limit int) error {
	if len(p.Items) > limit {
		return fmt.Errorf("it returned %d items for a page of %d", len(p.Items), limit)
	}
	for i := 1; i < len(p.Items); i++ {
		if last, name := p.Items[i-1].GetName(), p.Items[i].GetName(); name <= last {
			return fmt.Errorf("it returned %q after %q, which is not in order", name, last)
		}
	}
	return nil
}

// distinct orders by name and keeps the latest report of each name.
func distinct(items []Item) []Item {
	slices.SortStableFunc(items, func(a, b Item) int {
		return cmp.Or(cmp.Compare(a.GetName(), b.GetName()), cmp.Compare(ownerOf(b).GetEpoch(), ownerOf(a).GetEpoch()))
	})
	return slices.CompactFunc(items, func(a, b Item) bool { return a.GetName() == b.GetName() })
}

// ErrToken means that a page token is not from a list with the same arguments.
var ErrToken = errors.New("page_token is not from a list with the same arguments; list again without it")

// A token is plainMark and the token of a replica, which the replicas check; or cutMark, a checksum
// with the last name, a dot, and the token of a replica, if any. A token grants nothing.
const (
	plainMark = "p"
	cutMark   = "c"

	checksumLength = 8
)

// Encode returns the position as a page token. arguments is everything in the request but the page
// size and the token.
func (p Position) Encode(arguments string) string {
	if p.After == "" {
		return plainMark + p.Token
	}
	seal := checksum(arguments, p)
	return cutMark + base64.RawURLEncoding.EncodeToString(append(seal, p.After...)) + "." + p.Token
}

// ParsePosition parses a token of Encode with the same arguments; the empty token is the start. The
// error is ErrToken.
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
	sum := sha256.Sum256([]byte("trivet.gateway\x00" + arguments + "\x00" + p.After + "\x00" + p.Token))
	return sum[:checksumLength:checksumLength]
}
