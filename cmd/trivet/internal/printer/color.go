package printer

// Tone is what a text means to its reader.
type Tone int

// The tones.
const (
	// Usual is for ordinary text.
	Usual Tone = iota
	// Good is for what is well.
	Good
	// Fair is for what needs a look.
	Fair
	// Bad is for what is broken.
	Bad
	// Strong is for headings and for what matters most.
	Strong
	// Faint is for what explains the rest.
	Faint
)

// Ink writes in colour, or does not.
type Ink struct{ coloured bool }

// Dye gives a text its tone.
func (i Ink) Dye(tone Tone, text string) string {
	codes := [...]string{Usual: "", Good: "32", Fair: "33", Bad: "31", Strong: "1", Faint: "2"}
	if !i.coloured || text == "" || codes[tone] == "" {
		return text
	}
	return "\x1b[" + codes[tone] + "m" + text + "\x1b[0m"
}
