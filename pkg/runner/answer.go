package runner

// Answer is a Result on its way from a holder to the command line that asked:
// without the streams, which went there by themselves, and with what is for a
// person.
type Answer struct {
	Result       *Result  `json:"result"`
	RuntimeNotes []byte   `json:"runtime_notes"`
	Notes        []string `json:"notes"`
	LimitsReason string   `json:"limits_reason"`
}

// NewAnswer makes one of a Result of Served.Call.
func NewAnswer(res *Result) Answer {
	bare := *res
	bare.Stdout, bare.Stderr, bare.CodeStderr, bare.RuntimeNotes = nil, nil, nil, nil
	return Answer{&bare, res.RuntimeNotes.Head(notesLimit), res.Notes, res.LimitsReason}
}

// Take gives the Result back.
func (a *Answer) Take() *Result {
	res := a.Result
	if res == nil {
		return Lost("the answer of the background process cannot be read")
	}
	none := TextOf(nil)
	res.Stdout, res.Stderr, res.CodeStderr = none, none, none
	res.RuntimeNotes, res.Notes, res.LimitsReason = TextOf(a.RuntimeNotes), a.Notes, a.LimitsReason
	return res
}
